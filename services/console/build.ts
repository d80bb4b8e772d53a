import { build } from 'vite'

/*
 * Builds the console into `dist/`, which the ingress serves. `npm ci` runs it (`prepare` in package.json); it takes a second.
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
    // Nothing inline: the policy of the pages allows no data in scripts and styles.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
})
