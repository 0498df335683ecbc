import { render } from "preact";
import { useCallback, useEffect, useState } from "preact/hooks";

import { apiKey, get, messageOf, whenUnauthorized } from "./api";
import { Health } from "./health";
import { Judge } from "./judge";
import { Learning } from "./learning";
import { Playground } from "./playground";
import { type Pool, SAMPLE } from "./pool";
import { type View, VIEWS, readView } from "./state";
import "./styles.css";
import type { Session } from "./types";
import { Card, Field, Notice } from "./ui";

const TITLES: Record<View, string> = {
  playground: "Playground",
  judge: "Judge",
  learning: "Learning",
  health: "Health",
};
const THEME = "mnemorank.theme";
type Theme = "auto" | "light" | "dark";

function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>((localStorage.getItem(THEME) as Theme | null) ?? "auto");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(THEME, theme);
    window.dispatchEvent(new Event("themechange"));
  }, [theme]);
  const next: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
  return [theme, () => setTheme(next[theme])];
}

function App() {
  const [view, setView] = useState<View>(readView);
  const [session, setSession] = useState<Session | null>(null);
  const [problem, setProblem] = useState("");
  const [keyProblem, setKeyProblem] = useState<string | null>(null);
  const [pool, setPool] = useState<Pool>(SAMPLE);
  const [theme, cycleTheme] = useTheme();

  const connect = useCallback(async () => {
    try {
      setSession(await get<Session>("v1/console/session"));
      setKeyProblem(null);
      setProblem("");
    } catch (error) {
      setProblem(messageOf(error));
    }
  }, []);

  useEffect(() => {
    whenUnauthorized((message) => {
      setSession(null);
      setKeyProblem(apiKey.get() ? message : "");
    });
    void connect();
    const onHash = () => setView(readView());
    window.addEventListener("hashchange", onHash);
    return () => window.removeEventListener("hashchange", onHash);
  }, []);

  useEffect(() => {
    document.title = `${TITLES[view]} · mnemorank`;
  }, [view]);

  const forget = () => {
    apiKey.forget();
    setSession(null);
    setKeyProblem("");
  };

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="#playground">
          <img src="console/icon.svg" alt="" width="24" height="24" />
          <span>mnemorank</span>
        </a>
        <nav aria-label="Views">
          {VIEWS.map((name) => (
            <a key={name} href={`#${name}`} aria-current={name === view ? "page" : undefined}>
              {TITLES[name]}
            </a>
          ))}
        </nav>
        <div class="top-end">
          {session?.model && (
            <span class="served" title={session.model}>
              {session.model.split("+")[0]}
            </span>
          )}
          {session?.has_keys && (
            <button type="button" class="quiet" onClick={forget} title={`Signed in as ${session.caller}`}>
              Forget key
            </button>
          )}
          <button type="button" class="quiet" onClick={cycleTheme} aria-label={`Theme: ${theme}. Change`} title={`Theme: ${theme}`}>
            {theme === "auto" ? "◐" : theme === "light" ? "☀" : "☾"}
          </button>
        </div>
      </header>
      <main id="main" tabIndex={-1} class={`view-${view}`}>
        <h1 class="sr-only">{TITLES[view]}</h1>
        {keyProblem !== null ? (
          <KeyForm problem={keyProblem} onKey={connect} />
        ) : session ? (
          <>
            {/* Hidden, not removed: what was typed and loaded in a view stays while another one is open. */}
            <div hidden={view !== "playground"}>
              <Playground session={session} pool={pool} onPool={setPool} isOpen={view === "playground"} />
            </div>
            <div hidden={view !== "judge"}>
              <Judge session={session} pool={pool} isOpen={view === "judge"} />
            </div>
            {view === "learning" && <Learning session={session} onChange={connect} />}
            {view === "health" && <Health session={session} />}
          </>
        ) : problem ? (
          <div class="narrow">
            <Notice kind="bad">{problem}</Notice>
            <button type="button" onClick={connect}>
              Try again
            </button>
          </div>
        ) : null}
      </main>
    </>
  );
}

function KeyForm(props: { problem: string; onKey: () => Promise<void> }) {
  const [key, setKey] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    apiKey.set(key.trim());
    void props.onKey();
  };
  return (
    <div class="narrow">
      <Card title="API key">
        <p class="muted">This server requires a key. It stays in this tab and is forgotten when you close it.</p>
        <form class="stack" onSubmit={submit}>
          <Field label="Key">
            {(id) => (
              <input
                id={id}
                type="password"
                autocomplete="off"
                placeholder="mnk_…"
                value={key}
                onInput={(event) => setKey(event.currentTarget.value)}
                autofocus
              />
            )}
          </Field>
          {props.problem && <Notice kind="bad">{props.problem}</Notice>}
          <button type="submit" class="primary" disabled={!key.trim()}>
            Continue
          </button>
        </form>
      </Card>
    </div>
  );
}

render(<App />, document.getElementById("app") as HTMLElement);
