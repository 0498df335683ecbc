import { defineConfig } from "vite";

// Fixed file names and no source maps: the same source gives the same bytes, which are committed and shipped in the wheel.
export default defineConfig({
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
