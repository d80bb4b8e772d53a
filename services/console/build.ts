import { build } from 'vite'

/*
 * Builds the console into `dist/`, which the ingress serves. `npm ci` runs this script (`prepare` in package.json) in about a second.
 */

await build({
  root: import.meta.dirname,
  base: '/console/',
  configFile: false,
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: 'es2023',
    cssTarget: 'chrome123',
    // Files are never inlined as data: URLs, because the content security policy forbids such URLs in scripts and
    // styles.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
})
