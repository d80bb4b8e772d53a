import { serve } from './serve.ts'
import { warmUp } from './warm-up.ts'

/*
 * The process around the interpreters: confined by Node's permission model to reading a few files, without variables of
 * the service. It speaks frames with the service on standard input and output, and ends with them.
 *
 *   main.ts warm-up <library> <sources>      writes the image of a warmed interpreter, and ends
 *   main.ts serve <library> <image> <ready>  runs programs
 */

const [command, library = '', other = '', ready = '1'] = process.argv.slice(2)
// The service has gone: nobody wants the runs any more. Their threads end with the process.
process.stdin.on('close', () => process.exit(0))
process.stdin.on('error', () => process.exit(0))
process.stdout.on('error', () => process.exit(0))
if (command === 'warm-up') {
  process.stdin.resume()
  await warmUp(library, other)
} else {
  await serve(library, other, Number(ready))
}
