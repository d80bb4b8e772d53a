/*
 * Measures fairness between projects: how much longer the research of one project takes while another project reads documents that are slow
 * to parse.
 */
import { urlOf } from '../machine/processes.ts'
import { createKey, startSluice, untilAnswered } from '../machine/sluice.ts'
import { median, Samples } from '../results/samples.ts'
import { renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'
import { PAGES } from './pages.ts'

const OTHER_RUNS = 10
const RUNS = { quick: 3, normal: 9 }
/** Time in ms for which the other project runs before the measurement, so that its documents are being read when the measurement starts. */
const LEAD_MS = 1_500
const KINDS = Object.keys(PAGES)

export const DOCUMENTS: Section = {
  name: 'documents',
  summary: 'research of one project next to ten runs of another project that reads hostile documents',
  title: '## Hostile documents',
  introduction: `One process with the extractive writer. Project A always has ${OTHER_RUNS} runs in progress, each of which reads three documents of one kind.
Project B has one run at a time, which reads three ordinary pages. The figure is the median time of its runs, relative to the same
runs alone in the same round. *ordinary* is the control: project A reads ordinary pages too.`,
  async measure(run) {
    await using processes = run.processes()
    const web = urlOf(await processes.node({ name: 'web', script: './documents/server.ts', addressOn: 'stdout' }))
    const env = { SEARXNG_URL: web.href, RESEARCH_ALLOW_PRIVATE: 'true', LOG_LEVEL: 'error' }
    const models = ['{ id: deep-research, pool: research, engine: { type: research } }']
    const sluice = await startSluice(processes, { name: 'documents', models, env })
    const keys = [await createKey(sluice, '--name', 'a'), await createKey(sluice, '--name', 'b')] as const
    const samples = new Samples()
    const runs = run.options.isQuick ? RUNS.quick : RUNS.normal
    for (const key of keys) await untilAnswered(() => problemOf(sluice.url, key))
    await timesOf(sluice.url, keys[1], runs)
    await run.rounds(KINDS, async (kind, round) => {
      const alone = median(await timesOf(sluice.url, keys[1], runs))
      const beside = median(
        await besideOthers(run, { url: sluice.url, key: keys[0], kind }, () => timesOf(sluice.url, keys[1], runs)),
      )
      samples.add('b', kind, round, { alone, beside, ratio: beside / alone })
      run.print(
        `${kind}, round ${round}: ${show(alone, 0)} ms alone, ${show(beside, 0)} ms, ${show(beside / alone, 2)} ×`,
      )
    })
    const goals = KINDS.map((kind) => ({
      ...{ name: `time of a run next to ${OTHER_RUNS} with documents of the kind ${kind}`, unit: '× alone', max: 2 },
      measured: samples.median('b', kind, 'ratio'),
    }))
    const rows = KINDS.map((kind) => [
      kind,
      ...['alone', 'beside'].map((figure) => show(samples.median('b', kind, figure), 0)),
      show(samples.median('b', kind, 'ratio'), 2),
    ])
    return [renderGoals(goals), renderTable(['documents of project A', 'alone, ms', 'next to A, ms', '× alone'], rows)]
  },
}

interface Others {
  readonly url: URL
  readonly key: string
  readonly kind: string
}

/** Calls `work` while {@link OTHER_RUNS} runs of another project are in progress, and ends these runs afterwards. */
async function besideOthers<T>(run: Run, { url, key, kind }: Others, work: () => Promise<T>): Promise<T> {
  const over = new AbortController()
  const signal = AbortSignal.any([over.signal, run.signal])
  const callers = Array.from({ length: OTHER_RUNS }, async () => {
    while (!signal.aborted) await research(url, key, kind, signal).catch(() => undefined)
  })
  await new Promise((resolve) => setTimeout(resolve, LEAD_MS))
  try {
    return await work()
  } finally {
    over.abort()
    await Promise.all(callers)
  }
}

async function timesOf(url: URL, key: string, runs: number): Promise<number[]> {
  const times: number[] = []
  for (let left = runs; left > 0; left--) {
    const startedAt = performance.now()
    await research(url, key, 'ordinary')
    times.push(performance.now() - startedAt)
  }
  return times
}

async function problemOf(url: URL, key: string): Promise<string | undefined> {
  return await research(url, key, 'ordinary').then(() => undefined, String)
}

async function research(base: URL, key: string, kind: string, signal?: AbortSignal): Promise<void> {
  // A question that contains one invented word. Each query of the run then contains this word, and the mock search
  // returns pages of the wanted kind.
  const content = `What is tarn${kind}?`
  const response = await fetch(new URL('/v1/deep-research', base), {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'deep-research', messages: [{ role: 'user', content }] }),
    ...(signal && { signal }),
  })
  const text = await response.text()
  if (!response.ok) throw new Error(`research answered ${response.status}: ${text.slice(0, 200)}`)
}
