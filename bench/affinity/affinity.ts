/*
 * Measures the gain of affinity, next to conversations that the caller pins to a server. One run has all targets, so their ratios do not depend on the
 * machine. The mock servers wait instead of computing.
 */
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { urlOf } from '../machine/processes.ts'
import { KEY, type Sluice, startSluice, untilAnswered } from '../machine/sluice.ts'
import { renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

const SERVERS = 4
const CONVERSATIONS = 24
const TURNS = 6
const BLOCKS = { large: 4_000, small: 1_200 }
const THINK_MS = 100
const STAGGER_MS = 37
const SYSTEM = 'You are a careful assistant of our company. '.repeat(60)

type CacheSize = keyof typeof BLOCKS
type Prompts = 'conversations' | 'one prompt'

interface Target {
  readonly name: string
  /** URL and model of the call of a conversation. */
  readonly to: (conversation: number) => { readonly url: string; readonly model: string }
}

interface Figures {
  readonly share: number
  readonly p50: number
  readonly p95: number
  /** Highest number of calls of a server, relative to the mean. */
  readonly maxToMean: number
}

export const AFFINITY: Section = {
  name: 'affinity',
  summary: 'conversations on four servers with prefix caches: affinity, without it, and pinned by the caller',
  title: '## Affinity',
  introduction: `Four mock servers with prefix caches of 4,000 (large) or 1,200 blocks (small) get ${CONVERSATIONS} conversations of ${TURNS} turns. *Pinned* calls the
servers directly, one server per conversation. *off* and *auto* are the values of \`affinity\`. *Cached* is the share of prompt tokens that
were in a cache. The first token is that of the second and later turns. *One prompt*: all callers send the same conversation.`,
  async measure(run) {
    const parts: string[] = []
    for (const size of ['large', 'small'] as const) parts.push(await measureSize(run, size))
    return parts
  },
}

async function measureSize(run: Run, size: CacheSize): Promise<string> {
  await using processes = run.processes()
  const urls: URL[] = []
  for (let at = 0; at < SERVERS; at++) {
    const start = { name: `cache-${size}-${at}`, script: './affinity/server.ts', args: [String(BLOCKS[size])] }
    urls.push(urlOf(await processes.node({ ...start, addressOn: 'stdout' })))
  }
  const kafka = run.options.isQuick ? undefined : await run.kafka()
  const single = await startSluice(processes, { name: `affinity-${size}`, models: modelsOn(urls) })
  const name = `affinity-${size}-fleet`
  const workers = ['inference', 'inference', 'inference']
  const fleet = kafka && (await startSluice(processes, { name, models: modelsOn(urls), kafka, workers }))
  const pinned: Target = {
    name: 'pinned',
    to: (conversation) => ({ url: new URL('/v1', urls[conversation % SERVERS]).href, model: 'm' }),
  }
  const targets = [pinned, ...targetsOf(single, 'one worker'), ...(fleet ? targetsOf(fleet, 'three workers') : [])]
  for (const { to } of targets.slice(1)) await untilAnswered(() => probe(to(0)))
  const rows: string[][] = []
  for (const prompts of ['conversations', 'one prompt'] as const) {
    const figures = new Map<string, Figures[]>()
    await run.rounds(targets, async (target, round) => {
      await Promise.all(urls.map((url) => fetch(new URL('/reset', url), { method: 'POST' })))
      const measured = await measure(target, urls, prompts, `${size}-${round}`)
      figures.set(target.name, [...(figures.get(target.name) ?? []), measured])
    })
    rows.push(...rowsOf(`${size}, ${prompts}`, figures))
  }
  return renderTable(
    ['caches', 'through', 'cached', '× pinned', 'first token p50, ms', '× pinned', 'p95, ms', 'max/mean calls'],
    rows,
  )
}

function modelsOn(urls: readonly URL[]): string[] {
  const base_urls = urls.map((url) => `"${new URL('/v1', url).href}"`).join(', ')
  return (['auto', 'off'] as const).map(
    (affinity) => `{ id: ${affinity}, affinity: ${affinity}, engine: { type: openai, base_urls: [${base_urls}] } }`,
  )
}

function targetsOf({ url }: Sluice, name: string): Target[] {
  return ['off', 'auto'].map((model) => ({
    name: `${model}, ${name}`,
    to: () => ({ url: new URL('/v1', url).href, model }),
  }))
}

async function probe(to: ReturnType<Target['to']>): Promise<string | undefined> {
  const response = await call(to, 'probe', [{ role: 'user', content: 'hi' }])
  const text = await response.text()
  return response.ok ? undefined : text
}

function call(
  { url, model }: ReturnType<Target['to']>,
  session: string,
  messages: readonly object[],
): Promise<Response> {
  const headers = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json', 'x-session-id': session }
  const body = JSON.stringify({ model, messages, stream: true })
  return fetch(`${url}/chat/completions`, { method: 'POST', headers, body })
}

async function measure(target: Target, urls: readonly URL[], prompts: Prompts, seed: string): Promise<Figures> {
  const firstTokens: number[] = []
  const all = Array.from({ length: CONVERSATIONS }, async (_, conversation) => {
    await sleep(conversation * STAGGER_MS)
    const id = prompts === 'conversations' ? `${seed}-${conversation}` : seed
    await converse(target.to(conversation), id, firstTokens)
  })
  await Promise.all(all)
  const stats = await Promise.all(
    urls.map(async (url) => (await (await fetch(new URL('/stats', url))).json()) as Record<string, number>),
  )
  const sum = (field: string) => stats.reduce((total, each) => total + (each[field] ?? 0), 0)
  const sorted = firstTokens.toSorted((a, b) => a - b)
  const quantile = (part: number) => sorted[Math.floor(part * (sorted.length - 1))] ?? Number.NaN
  const most = Math.max(...stats.map(({ calls = 0 }) => calls))
  return {
    ...{ share: sum('cached') / sum('prompt'), p50: quantile(0.5), p95: quantile(0.95) },
    maxToMean: (most * SERVERS) / sum('calls'),
  }
}

async function converse(to: ReturnType<Target['to']>, id: string, firstTokens: number[]): Promise<void> {
  const messages: object[] = [{ role: 'system', content: SYSTEM }]
  for (let turn = 0; turn < TURNS; turn++) {
    messages.push({ role: 'user', content: wordsOf(`user ${id} ${turn}`, 1_600) })
    const startedAt = performance.now()
    const response = await call(to, id, messages)
    let [text, firstAt] = ['', 0]
    for await (const piece of response.body ?? []) {
      text += Buffer.from(piece).toString()
      if (firstAt === 0 && text.includes('word')) firstAt = performance.now()
    }
    if (firstAt === 0) throw new Error(`no answer: ${text.slice(0, 200)}`)
    if (turn > 0) firstTokens.push(firstAt - startedAt)
    messages.push({ role: 'assistant', content: wordsOf(`assistant ${id} ${turn}`, 1_200) })
    await sleep(THINK_MS)
  }
}

/** Text that has no block in common with that of another seed. */
function wordsOf(seed: string, chars: number): string {
  let [text, hash] = ['', seed]
  while (text.length < chars) {
    hash = createHash('md5').update(hash).digest('hex')
    text += `${hash} `
  }
  return text.slice(0, chars)
}

function rowsOf(caches: string, figures: ReadonlyMap<string, readonly Figures[]>): string[][] {
  const mean = (name: string, field: keyof Figures) => {
    const all = figures.get(name) ?? []
    return all.reduce((sum, each) => sum + each[field], 0) / all.length
  }
  return [...figures.keys()].map((name) => [
    ...[caches, name, show(mean(name, 'share'), 2), show(mean(name, 'share') / mean('pinned', 'share'), 2)],
    ...[show(mean(name, 'p50'), 0), show(mean(name, 'p50') / mean('pinned', 'p50'), 2)],
    ...[show(mean(name, 'p95'), 0), show(mean(name, 'maxToMean'), 2)],
  ])
}
