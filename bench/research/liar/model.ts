import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { LIES, type Lie, lieOf, type Quote } from './lies.ts'

/** A chat model that lies wherever a research asks it. */
export interface LyingModel extends AsyncDisposable {
  readonly url: string
  /** Claims that it has made, and how each lies. */
  readonly told: ReadonlyMap<string, Lie>
}

interface Call {
  readonly messages: readonly { role: string; content: string | { text: string }[] }[]
  readonly stream?: boolean
}
interface Data {
  readonly question?: string
  readonly quotes?: Quote[]
  readonly pairs?: { id: string }[]
  readonly claims?: { id: string; claim?: string; text?: string }[]
}

/** Claims of one note, as the schema of a note allows. */
const CLAIMS_MAX = 8
/** Each of so many plans is no plan, and each of so many notes never ends. */
const [BAD_PLAN, ENDLESS_NOTE] = [3, 9]
const ENDLESS = '{"claims": ['.padEnd(200_000, '"and so on" ')

/** Starts one on a free port of 127.0.0.1: it plans, notes, writes, judges and repairs, and none of it can be trusted. */
export async function startLyingModel(): Promise<LyingModel> {
  const told = new Map<string, Lie>()
  let [plans, notes, lies] = [0, 0, 0]
  const noteOf = (quotes: readonly Quote[]) => {
    const claims: { text: string; quotes: string[] }[] = []
    for (let at = 0; at < quotes.length && claims.length < CLAIMS_MAX; at++) {
      const quote = quotes[at]
      const lie = LIES[lies++ % LIES.length] ?? 'none'
      const claim = quote && lieOf(lie, quote, quotes[(at + 3) % quotes.length])
      if (claim) told.set(claim.text, lie)
      if (quote) claims.push(claim ?? { text: quote.text, quotes: [quote.id] })
    }
    return { claims }
  }
  const answer = (data: Data): unknown => {
    if (data.quotes) return ++notes % ENDLESS_NOTE === 0 ? ENDLESS : noteOf(data.quotes)
    // A judge that lies as well: everything is supported.
    if (data.pairs) return { verdicts: data.pairs.map(({ id }) => ({ id, verdict: 'supported' })) }
    if (data.claims && data.question !== undefined) return reportOf(data.claims)
    if (data.claims) return { rewrites: data.claims.map(({ id, claim }) => ({ id, text: claim })) }
    if (++plans % BAD_PLAN === 0) return '{"parts": [{"question": '
    return { parts: [{ question: data.question, queries: [data.question?.slice(0, 200)] }] }
  }
  const server = createServer((request, response) => {
    bodyOf(request)
      .then((body) => {
        const said = answer(dataOf(body))
        const content = typeof said === 'string' ? said : JSON.stringify(said)
        response.setHeader('content-type', body.stream ? 'text/event-stream' : 'application/json')
        response.end(body.stream ? streamOf(content, body) : JSON.stringify(wholeOf(content, body)))
      })
      .catch((error: unknown) => response.writeHead(500).end(String(error)))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url,
    told,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** All of the claims, and one that nobody has made. */
function reportOf(claims: readonly { id: string; text?: string }[]) {
  const sentences = claims.map(({ id, text }) => ({ text, claims: [id] }))
  const invented = { text: 'The moon is made of cheese.', claims: ['c99'] }
  return {
    summary: [...sentences.slice(0, 3), invented],
    sections: [{ title: 'More', sentences: [...sentences.slice(3, 14), invented].slice(0, 12) }],
  }
}

function dataOf({ messages }: Call): Data {
  const content = messages.find(({ role }) => role === 'user')?.content ?? '{}'
  return JSON.parse(typeof content === 'string' ? content : (content[0]?.text ?? '{}')) as Data
}

async function bodyOf(request: IncomingMessage): Promise<Call> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return JSON.parse(Buffer.concat(chunks).toString()) as Call
}

const HEAD = { id: 'chatcmpl-1', created: 1_790_000_000, model: 'liar' }

/** As if four characters were a token. */
function usageOf(content: string, { messages }: Call) {
  const [prompt_tokens, completion_tokens] = [JSON.stringify(messages), content].map(({ length }) =>
    Math.ceil(length / 4),
  )
  return { prompt_tokens, completion_tokens, total_tokens: (prompt_tokens ?? 0) + (completion_tokens ?? 0) }
}

function wholeOf(content: string, call: Call): object {
  const message = { role: 'assistant', content }
  const choices = [{ index: 0, message, finish_reason: 'stop' }]
  return { ...HEAD, object: 'chat.completion', choices, usage: usageOf(content, call) }
}

function streamOf(content: string, call: Call): string {
  const chunk = { ...HEAD, object: 'chat.completion.chunk' }
  const frames = [
    { ...chunk, choices: [{ index: 0, delta: { role: 'assistant', content }, finish_reason: null }] },
    { ...chunk, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] },
    { ...chunk, choices: [], usage: usageOf(content, call) },
  ]
  return [...frames.map((frame) => JSON.stringify(frame)), '[DONE]'].map((frame) => `data: ${frame}\n\n`).join('')
}
