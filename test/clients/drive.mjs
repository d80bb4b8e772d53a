/**
 * Runs the three calls of a client: `node drive.mjs QUESTIONS`, with `page.mjs`, the snippet of docs/get-started/clients.md, and `case.mjs`,
 * which exports `whole`, `streamed` and `tools`, beside it. Each takes a prompt; `streamed` gives the pieces of the answer, the
 * others its text. The last line printed is JSON: by call the answer, or the error.
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
// Clients may keep connections, which would keep the process.
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
