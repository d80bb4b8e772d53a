/*
 * Entry point: enables Node's compile cache, then loads `start.ts`. With the cache the next start of the same version needs half of the
 * CPU, because no file has its types stripped again and the first calls run compiled code.
 *
 * Plain JavaScript that each Node can parse: an older Node gets a sentence instead of a SyntaxError, and the type stripper, which stays
 * in memory with 11 MiB, is not loaded when everything is compiled.
 */
import * as nodeModule from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'

const NODE_MIN = 24

if (Number.parseInt(process.versions.node, 10) < NODE_MIN) {
  process.stderr.write(
    `Sluice needs Node.js ${NODE_MIN} or newer; this is ${process.versions.node}. Run "npm start", which uses the Node.js that "npm ci" installs.\n`,
  )
  process.exit(2)
}
enableCache()
await import('./start.ts')

/**
 * The directory is in the home directory of this user, because its files are executed and no other user may write them.
 */
function enableCache() {
  try {
    nodeModule.enableCompileCache(join(homedir(), '.cache', 'sluice', 'compiled'))
  } catch {
    // Without a home directory the cache stays disabled.
  }
}
