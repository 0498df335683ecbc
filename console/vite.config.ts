import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { type Plugin, defineConfig } from "vite";

/** Write a hash of the source next to the build, so that a test finds a build that is older than its source. */
function stampSource(): Plugin {
  return {
    name: "stamp-source",
    apply: "build",
    generateBundle() {
      const hash = createHash("sha256");
      const files = ["index.html", "package-lock.json", "vite.config.ts", "tsconfig.json"];
      for (const folder of ["src", "public"]) files.push(...readdirSync(folder).map((name) => `${folder}/${name}`));
      for (const file of files.sort()) hash.update(`${file}\n`).update(readFileSync(file));
      this.emitFile({ type: "asset", fileName: "source.sha256", source: `${hash.digest("hex")}\n` });
    },
  };
}

// Fixed file names and no source maps: the same source gives the same bytes, which are committed and shipped in the wheel.
export default defineConfig({
  plugins: [stampSource()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  experimental: {
    // The page is served at `console`, its files below it, maybe behind a proxy that adds a prefix.
    renderBuiltUrl: (filename) => `console/${filename}`,
  },
  build: {
    outDir: "../src/mnemorank/assets/console",
    emptyOutDir: true,
    target: "es2023",
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
    rollupOptions: {
      output: { entryFileNames: "app.js", chunkFileNames: "[name].js", assetFileNames: "app[extname]", codeSplitting: false },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8000", "/console": "http://127.0.0.1:8000" } },
});
