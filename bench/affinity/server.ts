/*
 * Mock model server with a prefix cache, in its own process: `node server.ts BLOCKS`. Prints its address on standard output.
 *
 * The cache is an LRU of BLOCKS blocks of 64 characters. The first token is delayed by 4 ms per block of the prompt that is not cached. The
 * answer ends 60 ms after its first token. The server thus waits instead of computing.
 *
 * `GET /stats` returns the counts so far, `POST /reset` clears counts and cache. After `POST /down`, the server closes the connection of
 * each new call, until `POST /up`.
 */
import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

const BLOCK_CHARS = 64
const TOKENS_PER_BLOCK = 16
const PREFILL_MS = 4
const DECODE_MS = 60

const blocksMax = Number(process.argv[2])
const cache = new Set<string>()
const stats = { calls: 0, prompt: 0, cached: 0 }
let isDown = false

const server = createServer(async (req, res) => {
  const body = await textOf(req)
  if (req.url === '/stats') return void res.end(JSON.stringify(stats))
  if (req.url === '/reset') {
    cache.clear()
    Object.assign(stats, { calls: 0, prompt: 0, cached: 0 })
    return void res.end()
  }
  if (req.url === '/down' || req.url === '/up') {
    isDown = req.url === '/down'
    return void res.end()
  }
  if (isDown) return void req.socket.destroy()
  if (req.method !== 'POST') return void res.end(JSON.stringify({ object: 'list', data: [] }))
  const { messages } = JSON.parse(body) as { messages: { role: string; content: string }[] }
  const { blocks, hits } = read(messages.map(({ role, content }) => `<${role}>${content}`).join(''))
  await sleep((blocks - hits) * PREFILL_MS)
  const usage = { prompt_tokens: blocks * TOKENS_PER_BLOCK, completion_tokens: 8 }
  const details = { prompt_tokens_details: { cached_tokens: hits * TOKENS_PER_BLOCK } }
  res.writeHead(200, { 'content-type': 'text/event-stream' })
  const send = (choices: unknown[], more = {}) => res.write(`data: ${JSON.stringify({ choices, ...more })}\n\n`)
  send([{ index: 0, delta: { role: 'assistant', content: 'word' }, finish_reason: null }])
  await sleep(DECODE_MS)
  send([{ index: 0, delta: {}, finish_reason: 'stop' }])
  send([], { usage: { ...usage, ...details } })
  res.end('data: [DONE]\n\n')
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})

async function textOf(req: IncomingMessage): Promise<string> {
  let text = ''
  for await (const piece of req) text += piece
  return text
}

/** Counts the cached blocks at the start of a prompt, then caches all blocks of the prompt. */
function read(text: string): { readonly blocks: number; readonly hits: number } {
  const blocks = Math.floor(text.length / BLOCK_CHARS)
  let [hash, hits] = ['', 0]
  for (let at = 0; at < blocks; at++) {
    hash = createHash('md5')
      .update(hash + text.slice(at * BLOCK_CHARS, (at + 1) * BLOCK_CHARS))
      .digest('hex')
    if (cache.delete(hash) && hits === at) hits++
    cache.add(hash)
    const [oldest] = cache
    if (cache.size > blocksMax && oldest !== undefined) cache.delete(oldest)
  }
  stats.calls++
  stats.prompt += blocks
  stats.cached += hits
  return { blocks, hits }
}
