/**
 * Runs the three calls of a client: `node drive.mjs QUESTIONS`. The directory must contain `page.mjs`, the snippet of docs/get-started/clients.md,
 * and `case.mjs`, which exports the functions `whole`, `streamed` and `tools`. Each function receives a prompt. `streamed` returns the pieces of
 * the answer, and the others return its text. The last printed line is JSON with the answer or the error of each call.
 */
import { inspect } from 'node:util'

const write = process.stdout.write.bind(process.stdout)
const printed = []
process.stdout.write = (text) => printed.push(text) > 0
const loaded = await answerOf(() => import('./page.mjs'))
const report = { page: loaded.error ? loaded : { answer: printed.join('') } }
const calls = loaded.error ? {} : await import('./case.mjs')
for (const [name, prompt] of Object.entries(JSON.parse(process.argv[2])))
  report[name] = loaded.error ? { error: 'the snippet failed' } : await answerOf(() => calls[name](prompt))
// Exits explicitly, because connections that a client keeps open would prevent the exit.
write(`\n${JSON.stringify(report)}\n`, () => process.exit(0))

async function answerOf(call) {
  try {
    const value = await call()
    if (typeof value?.[Symbol.asyncIterator] !== 'function') return { answer: value }
    const pieces = []
    for await (const piece of value) pieces.push(piece)
    return { answer: pieces }
  } catch (error) {
    process.stderr.write(`${inspect(error)}\n`)
    return { error: String(error) }
  }
}
