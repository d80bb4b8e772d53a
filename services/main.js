/*
 * Entry point: enables Node's compile cache, then loads `start.ts`. With the cache, the next start of the same version needs half of the
 * CPU, because no types are stripped again and the first calls run compiled code.
 *
 * This file is plain JavaScript for two reasons. An older Node can parse the file and print a message instead of a SyntaxError. If all
 * other files are compiled, then Node does not load its type stripper, which would occupy 11 MiB.
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

/** The cache directory is in the home directory of this user. Its files are executed, so no other user may write them. */
function enableCache() {
  try {
    nodeModule.enableCompileCache(join(homedir(), '.cache', 'sluice', 'compiled'))
  } catch {
    // Without a home directory the cache stays disabled.
  }
}
