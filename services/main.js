/*
 * The entry point. What it starts is `start.ts`, once Node was told to keep what it compiles: the next start of the same
 * version takes half of the CPU, for nothing has its types stripped again, and its first calls meet compiled code.
 *
 * Plain JavaScript, since Node's stripper of types is loaded with the first file of TypeScript that is not compiled yet, and
 * stays: 11 MiB of every process.
 */
import { enableCompileCache } from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'

keepCompiled()
await import('./start.ts')

/** Of this user alone: what lies there is run. Where it cannot be written Node goes on without. */
function keepCompiled() {
  try {
    enableCompileCache(join(homedir(), '.cache', 'sluice', 'compiled'))
  } catch {
    // A user without a home has no such place.
  }
}
