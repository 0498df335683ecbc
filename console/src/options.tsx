/** The form for the options of a ranking. Only what differs from the default is sent. */

import type { OptionSet, OptionValue } from "./state";
import { Field } from "./ui";

interface Choice {
  name: string;
  label: string;
  hint?: string;
  choices: readonly string[];
}

interface Amount {
  name: string;
  label: string;
  hint?: string;
  placeholder: string;
  step: number;
  max?: number;
  whole?: boolean;
}

const CHOICES: readonly Choice[] = [
  { name: "supersession", label: "Outdated memories", choices: ["demote", "drop", "off"] },
  { name: "recency", label: "Recency", choices: ["none", "linear", "exponential"] },
  { name: "first_stage", label: "First stage", choices: ["auto", "given", "bm25", "none"] },
];

const AMOUNTS: readonly Amount[] = [
  { name: "top_k", label: "Results", placeholder: "all", step: 1, whole: true },
  { name: "max_scored", label: "Score at most", placeholder: "all", step: 10, whole: true },
  { name: "floor", label: "Minimum relevance", placeholder: "none", step: 0.05, max: 1 },
  { name: "abstain_below", label: "Abstain below", placeholder: "by model", step: 0.05, max: 1 },
  { name: "diversity", label: "Diversity (λ)", placeholder: "off", step: 0.05, max: 1 },
  { name: "tie_margin", label: "Tie margin", placeholder: "0", step: 0.01, max: 1 },
  { name: "token_budget", label: "Token budget", placeholder: "none", step: 100, whole: true },
];

const FLAGS = [
  ["supersede_similar", "Let the model judge what replaces what"],
  ["detect_past_questions", "Recognize questions about the past"],
] as const;

export function OptionsForm(props: { value: OptionSet; onChange: (value: OptionSet) => void }) {
  const set = (name: string, value: OptionValue | undefined) => {
    const next = { ...props.value };
    if (value === undefined) delete next[name];
    else next[name] = value;
    props.onChange(next);
  };
  return (
    <div class="options">
      {CHOICES.map((choice) => (
        <Field key={choice.name} label={choice.label}>
          {(id) => (
            <select
              id={id}
              value={String(props.value[choice.name] ?? choice.choices[0])}
              onChange={(event) => {
                const { value } = event.currentTarget;
                set(choice.name, value === choice.choices[0] ? undefined : value);
              }}
            >
              {choice.choices.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          )}
        </Field>
      ))}
      {AMOUNTS.map((amount) => (
        <Field key={amount.name} label={amount.label}>
          {(id) => (
            <input
              id={id}
              type="number"
              min={amount.whole ? 1 : 0}
              max={amount.max}
              step={amount.step === 1 || !amount.whole ? amount.step : 1}
              placeholder={amount.placeholder}
              value={(props.value[amount.name] as number | undefined) ?? ""}
              onChange={(event) => {
                const { value, valueAsNumber } = event.currentTarget;
                set(amount.name, value === "" || !Number.isFinite(valueAsNumber) ? undefined : valueAsNumber);
              }}
            />
          )}
        </Field>
      ))}
      <div class="flags">
        {FLAGS.map(([name, label]) => (
          <label key={name} class="check">
            <input
              type="checkbox"
              checked={props.value[name] !== false}
              onChange={(event) => set(name, event.currentTarget.checked ? undefined : false)}
            />
            {label}
          </label>
        ))}
      </div>
    </div>
  );
}

/** Split what the form collects into the fields of a request. */
export function requestFields(options: OptionSet): { top_k?: OptionValue; options: OptionSet } {
  const { top_k, ...rest } = options;
  return top_k === undefined ? { options: rest } : { top_k, options: rest };
}
