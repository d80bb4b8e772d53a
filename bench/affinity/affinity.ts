/*
 * Measures the gain of affinity: calls of one conversation go to the server whose prefix cache has their prompt. The results are compared
 * with those of callers that pin each conversation to a server themselves. One run measures all targets, so their ratios do not depend on
 * the machine. The mock servers wait instead of computing.
 */
import { createHash } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { urlOf } from '../machine/processes.ts'
import { openKafka, SHORT_LIVED_JVM } from '../machine/servers.ts'
import { KEY, type Sluice, startSluice, untilAnswered } from '../machine/sluice.ts'
import { Samples } from '../results/samples.ts'
import { type Goal, renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

export const SERVERS = 4
const CONVERSATIONS = 24
const TURNS = 6
const BLOCKS = { large: 4_000, small: 1_200 }
/**
 * Time between two turns of a conversation, in ms. With this value, all processes together keep two cores about half busy. A shorter time
 * would overload the cores, and the section would measure the wait for a core.
 */
const THINK_MS = 300
const STAGGER_MS = 37
/** Times in ms, after the start of the first conversation, at which one server leaves and returns. */
const OUTAGE_MS = { from: 900, to: 1_900 }
/**
 * Time in ms after which pinned callers use a returned server again. The circuit breaker of a gateway needs about the same time. The
 * breaker first waits for the answer of a trial call.
 */
const RETURN_MS = 300
/** Repetitions of the rounds with one prompt. The p95 of one round of 144 short calls varies by more than the 5 % that the goal allows. */
const ONE_PROMPT_REPEATS = 3
/** Duration in ms of the calls before the first measurement. The JVM of Kafka and the workers compile their code in this time. */
const WARM_UP_MS = { service: 4_000, fleet: 20_000 }
export const SYSTEM = 'You are a careful assistant of our company. '.repeat(60)

type CacheSize = keyof typeof BLOCKS
const PROMPTS = ['conversations', 'a server leaves and returns', 'one prompt'] as const
type Prompts = (typeof PROMPTS)[number]

interface Target {
  readonly name: string
  /**
   * Returns the URL and model of the next call of a conversation. URL and model may differ per conversation, because some targets
   * pin each conversation to one server.
   */
  readonly to: (conversation: number) => { readonly url: string; readonly model: string }
}

interface Figures {
  readonly share: number
  readonly p50: number
  readonly p95: number
  /** Number of calls of the busiest server, divided by the mean over all servers. 1 is a perfect balance. */
  readonly maxToMean: number
}

export const AFFINITY: Section = {
  name: 'affinity',
  summary: 'conversations on four servers with prefix caches: affinity, without it, and pinned by the caller',
  title: '## Affinity',
  introduction: `Four mock servers with prefix caches of 4,000 (large) or 1,200 blocks (small) get ${CONVERSATIONS} conversations of ${TURNS} turns. *Pinned* calls the
servers directly, one server per conversation. *off* and *auto* are the values of \`affinity\`. *Cached* is the share of prompt tokens that
were in a cache. The first token is that of the second and later turns. *A server leaves and returns*: one server accepts no calls for
${OUTAGE_MS.to - OUTAGE_MS.from} ms, and pinned conversations use the next server until ${RETURN_MS} ms later. *One prompt*: all callers send one conversation.`,
  async measure(run) {
    const parts: string[] = []
    for (const size of ['large', 'small'] as const) parts.push(...(await measureSize(run, size)))
    return parts
  },
}

async function measureSize(run: Run, size: CacheSize): Promise<string[]> {
  await using processes = run.processes()
  const urls: URL[] = []
  for (let at = 0; at < SERVERS; at++) {
    const start = { name: `cache-${size}-${at}`, script: './affinity/server.ts', args: [String(BLOCKS[size])] }
    urls.push(urlOf(await processes.node({ ...start, addressOn: 'stdout' })))
  }
  await using kafka = run.options.isQuick
    ? undefined
    : await openKafka(join(run.dir, `affinity-${size}`), SHORT_LIVED_JVM)
  if (kafka) run.versions.add(kafka.version)
  const single = await startSluice(processes, { name: `affinity-${size}`, models: modelsOn(urls) })
  const name = `affinity-${size}-fleet`
  const workers = ['inference', 'inference', 'inference']
  const fleet = kafka && (await startSluice(processes, { name, models: modelsOn(urls), kafka, workers }))
  const outage = new Outage(urls[1] as URL)
  const pinned: Target = {
    name: 'pinned',
    to(conversation) {
      const [own, next] = [conversation, conversation + 1].map((at) => urls[at % SERVERS] as URL)
      return { url: new URL('/v1', own === outage.server && outage.isOn ? next : own).href, model: 'm' }
    },
  }
  const targets = [pinned, ...targetsOf(single, 'one worker'), ...(fleet ? targetsOf(fleet, 'three workers') : [])]
  for (const { to } of targets.slice(1)) await untilAnswered(() => probe(to(0)))
  const warmUpMs = fleet ? WARM_UP_MS.fleet : WARM_UP_MS.service
  await Promise.all(targets.map(({ to }) => warmUp(() => probe(to(0)), warmUpMs)))
  const samples = new Samples()
  for (const prompts of PROMPTS) {
    const repeats = prompts === 'one prompt' && !run.options.isQuick ? ONE_PROMPT_REPEATS : 1
    for (let repeat = 0; repeat < repeats; repeat++) {
      await run.rounds(targets, async (target, roundOfRepeat) => {
        const round = repeat * run.options.rounds + roundOfRepeat
        await Promise.all(urls.map((url) => fetch(new URL('/reset', url), { method: 'POST' })))
        const isOutage = prompts === 'a server leaves and returns'
        const [measured] = await Promise.all([
          measure(target, urls, prompts, `${size}-${prompts}-${round}`),
          isOutage && outage.run(),
        ])
        samples.add(target.name, prompts, round, { ...measured })
      })
    }
  }
  return [renderGoals(goalsOf(size, samples)), tableOf(size, samples)]
}

/** A period in which one server accepts no calls. */
class Outage {
  readonly server: URL
  isOn = false

  constructor(server: URL) {
    this.server = server
  }

  async run(): Promise<void> {
    await sleep(OUTAGE_MS.from)
    this.isOn = true
    await fetch(new URL('/down', this.server), { method: 'POST' })
    await sleep(OUTAGE_MS.to - OUTAGE_MS.from)
    await fetch(new URL('/up', this.server), { method: 'POST' })
    await sleep(RETURN_MS)
    this.isOn = false
  }
}

export function modelsOn(urls: readonly URL[]): string[] {
  const base_urls = urls.map((url) => `"${new URL('/v1', url).href}"`).join(', ')
  return (['auto', 'off'] as const).map(
    (affinity) =>
      `{ id: ${affinity}, affinity: ${affinity}, engine: { type: openai, base_urls: [${base_urls}], breaker: { reset_ms: 50 } } }`,
  )
}

function targetsOf({ url }: Sluice, name: string): Target[] {
  return ['off', 'auto'].map((model) => ({
    name: `${model}, ${name}`,
    to: () => ({ url: new URL('/v1', url).href, model }),
  }))
}

/** Sends calls until the processes, such as the JVM of Kafka, have compiled their code. */
async function warmUp(send: () => Promise<string | undefined>, ms: number): Promise<void> {
  const untilMs = performance.now() + ms
  const caller = async () => {
    while (performance.now() < untilMs) await send()
  }
  await Promise.all([caller(), caller(), caller(), caller()])
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
    const id = prompts === 'one prompt' ? seed : `${seed}-${conversation}`
    await converse(() => target.to(conversation), id, firstTokens)
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

async function converse(to: () => ReturnType<Target['to']>, id: string, firstTokens: number[]): Promise<void> {
  const messages: object[] = [{ role: 'system', content: SYSTEM }]
  for (let turn = 0; turn < TURNS; turn++) {
    messages.push({ role: 'user', content: wordsOf(`user ${id} ${turn}`, 1_600) })
    const startedAt = performance.now()
    const response = await call(to(), id, messages)
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

/** Returns a text that is different in each block for each seed, so that conversations share no cached blocks. */
function wordsOf(seed: string, chars: number): string {
  let [text, hash] = ['', seed]
  while (text.length < chars) {
    hash = createHash('md5').update(hash).digest('hex')
    text += `${hash} `
  }
  return text.slice(0, chars)
}

function goalsOf(size: CacheSize, samples: Samples): Goal[] {
  const autos = samples.targets.filter((target) => target.startsWith('auto'))
  return autos.flatMap((auto): Goal[] => {
    const off = auto.replace('auto', 'off')
    const placed = PROMPTS.filter((prompts) => prompts !== 'one prompt')
    return [
      ...placed.flatMap((prompts): Goal[] => [
        {
          ...{ name: `cached tokens, ${size} caches, ${prompts}, ${auto}`, unit: '× pinned', min: 0.95 },
          measured: samples.ratio(auto, 'pinned', prompts, 'share'),
        },
        {
          ...{ name: `first token p50, ${size} caches, ${prompts}, ${auto}`, unit: '× pinned', max: 1.15 },
          measured: samples.ratio(auto, 'pinned', prompts, 'p50'),
        },
      ]),
      {
        ...{ name: `busiest server, ${size} caches, one prompt, ${auto}`, unit: '× mean', max: 1.3 },
        measured: samples.median(auto, 'one prompt', 'maxToMean'),
      },
      {
        ...{ name: `first token p95, ${size} caches, one prompt, ${auto}`, unit: '× off', max: 1.05 },
        measured: samples.ratio(auto, off, 'one prompt', 'p95'),
      },
    ]
  })
}

function tableOf(size: CacheSize, samples: Samples): string {
  const rows = PROMPTS.flatMap((prompts) =>
    samples.targets.map((target) => {
      const median = (figure: keyof Figures) => samples.median(target, prompts, figure)
      const ratio = (figure: keyof Figures) => samples.ratio(target, 'pinned', prompts, figure)
      return [
        ...[`${size}, ${prompts}`, target, show(median('share'), 2), show(ratio('share'), 2)],
        ...[show(median('p50'), 0), show(ratio('p50'), 2), show(median('p95'), 0), show(median('maxToMean'), 2)],
      ]
    }),
  )
  const head = [
    'caches',
    'through',
    'cached',
    '× pinned',
    'first token p50, ms',
    '× pinned',
    'p95, ms',
    'max/mean calls',
  ]
  return renderTable(head, rows)
}
