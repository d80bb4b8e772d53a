/** Replaces all servers that a research calls, on one address: a SearXNG search engine, web pages, and a chat model. Equal requests are counted. */
import { type Answer, type SeenCall, startUpstream } from '../processes/upstream.ts'

export interface OutsideCall {
  /** Unique word in the question, such as `Tarn01`, which identifies the research. */
  readonly tag: string
  /** Name of a request. A repetition has the same name. Examples: `search What eats a heron at Tarn01`, `page 2`, `model note`. */
  readonly what: string
  /** For a call to the chat model: `job_id:attempt` of the child job. Otherwise undefined. */
  readonly execution: string | undefined
  /** Settles if the caller closes the connection before the response. */
  readonly aborted: Promise<number>
}

/** The replaced servers of one test. */
export interface Outside extends AsyncDisposable {
  readonly url: string
  /** For the research with this tag: number of requests with each name. */
  countsOf(tag: string): Map<string, number>
  /** Called and awaited before each response. If the promise never settles, then the call gets no response. */
  onCall: (call: OutsideCall) => void | Promise<void>
}

const PAGES = 3
const SUBJECTS = ['tall trees near the water', 'colonies of forty pairs', 'reeds that nobody cuts']

/** Starts the servers on a free port. A tag is the word `Tarn` followed by digits. */
export async function startOutside(): Promise<Outside> {
  const counts = new Map<string, Map<string, number>>()
  const outside = {
    onCall: (() => {}) as Outside['onCall'],
    countsOf(tag: string) {
      const known = counts.get(tag) ?? new Map<string, number>()
      counts.set(tag, known)
      return known
    },
  }
  const upstream = await startUpstream(async (call, answer) => {
    if (call.path === '/robots.txt') return answer.text('', 'text/plain', 404)
    const [tag, what] = nameOf(call)
    const own = outside.countsOf(tag)
    own.set(what, (own.get(what) ?? 0) + 1)
    const execution = call.headers['idempotency-key']?.toString()
    await outside.onCall({ tag, what, execution, aborted: call.closed })
    if (what.startsWith('search')) answer.json({ results: hitsOf(upstream.url, tag) })
    else if (what.startsWith('page')) answer.text(pageOf(tag, Number(what.at(-1))), 'text/markdown')
    else sayAs(call, answer, JSON.stringify(answerOf(what, dataOf(call))))
  })
  return Object.assign(outside, { url: upstream.url, [Symbol.asyncDispose]: () => upstream[Symbol.asyncDispose]() })
}

/** Returns the question that contains a tag. */
export function questionOf(tag: string): string {
  return `How do herons at ${tag} build their nests?`
}

function nameOf(call: SeenCall): [tag: string, what: string] {
  const url = new URL(call.path, 'http://127.0.0.1')
  const query = url.searchParams.get('q')
  const text = query ?? (call.path.startsWith('/pages/') ? call.path : JSON.stringify(call.body))
  const tag = /Tarn\d+/.exec(text)?.[0] ?? ''
  if (query !== null) return [tag, `search ${query}`]
  if (call.path.startsWith('/pages/')) return [tag, `page ${call.path.at(-1)}`]
  return [tag, `model ${askOf(dataOf(call))}`]
}

function askOf(data: Record<string, unknown>): string {
  if ('earlier_turns' in data) return 'plan'
  if ('quotes' in data) return 'note'
  if ('pairs' in data) return 'judge'
  return 'question' in data ? 'write' : 'repair'
}

function dataOf({ body }: SeenCall): Record<string, unknown> {
  const { messages } = body as { messages: { role: string; content: string | { text: string }[] }[] }
  const content = messages.find(({ role }) => role === 'user')?.content ?? '{}'
  return JSON.parse(typeof content === 'string' ? content : (content[0]?.text ?? '{}'))
}

function hitsOf(url: string, tag: string): object[] {
  return Array.from({ length: PAGES }, (_, at) => ({
    url: `${url}/pages/${tag}/${at}`,
    title: `Herons ${at}`,
    content: '',
  }))
}

function pageOf(tag: string, at: number): string {
  return `# Herons at ${tag}\n\nHerons at ${tag} build their nests in ${SUBJECTS[at]}, page ${at} of the survey says.\n`
}

/**
 * Returns the answer of the chat model. The model repeats the quotes of the sources, so that the verification of the report, which compares
 * words, finds each statement supported.
 */
function answerOf(what: string, data: Record<string, unknown>): object {
  if (what === 'model plan') {
    const question = String(data.question)
    const subject = question.slice('How do '.length, -1)
    return { parts: [{ question, queries: [`${subject} trees`, `${subject} colonies`, `${subject} reeds`] }] }
  }
  if (what === 'model note') {
    const quotes = data.quotes as { id: string; text: string }[]
    return { claims: quotes.slice(0, 2).map(({ id, text }) => ({ text, quotes: [id] })) }
  }
  if (what !== 'model write') return {}
  const [first, second = first] = (data.claims as { id: string; text: string }[]).map(({ id, text }) => {
    return { text, claims: [id] }
  })
  return { summary: [first], sections: [{ title: 'More of them', sentences: [second] }] }
}

/** Sends the answer as a whole or as a stream, as requested. */
function sayAs({ body }: SeenCall, answer: Answer, content: string): void {
  const usage = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 }
  const head = { id: 'chatcmpl-1', created: 1_790_000_000, model: 'm' }
  if (body.stream !== true) {
    const message = { role: 'assistant', content }
    return answer.json({
      ...head,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason: 'stop' }],
      usage,
    })
  }
  const chunk = { ...head, object: 'chat.completion.chunk' }
  answer.open()
  answer.frame({ ...chunk, choices: [{ index: 0, delta: { role: 'assistant', content }, finish_reason: null }] })
  answer.frame({ ...chunk, choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })
  answer.frame({ ...chunk, choices: [], usage })
  answer.frame('[DONE]')
  answer.end()
}
