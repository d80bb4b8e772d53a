import { serve } from './serve.ts'
import { warmUp } from './warm-up.ts'

/*
 * Entry point of the confined process, in which the interpreters run. Node's permission model lets the process read a few files. The
 * process exchanges frames with the service on standard input and output, and ends when they close.
 *
 *     main.ts warm-up <library> <sources>      writes the image of an interpreter with loaded libraries, and ends
 *     main.ts serve <library> <image> <ready>  runs programs
 */

const [command, library = '', other = '', ready = '1'] = process.argv.slice(2)
// If standard input closes, then the service has ended, so its runs are obsolete. Their threads end with the process.
process.stdin.on('close', () => process.exit(0))
process.stdin.on('error', () => process.exit(0))
process.stdout.on('error', () => process.exit(0))
if (command === 'warm-up') {
  process.stdin.resume()
  await warmUp(library, other)
} else {
  await serve(library, other, Number(ready))
}
