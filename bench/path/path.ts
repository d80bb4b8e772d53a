import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { postChat } from '../load/chat.ts'
import { chooseInspector, type Inspector } from '../machine/inspector.ts'
import { type Sluice, startSluice, untilAnswered } from '../machine/sluice.ts'
import { renderGoals, renderTable } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

/*
 * Counts the files and functions of the product that one call runs through. A reader has to follow a call through these files, so the
 * counts have upper limits. V8's precise coverage of one process with the echo model gives the counts. Anonymous functions and functions
 * that also run in an idle process are not counted.
 */

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
/**
 * Wait in ms before the counts begin. The value exceeds the intervals of all periodic tasks, so that each of these
 * tasks has run at least once.
 */
const IDLE_MS = 6_000
/** Wait in milliseconds after an answer, in which the work after the answer ends, such as writing the usage record. */
const SETTLE_MS = 150
const MODEL = 'echo-1'
const CONTENT = 'hello there you'

type Send = (sluice: Sluice) => Promise<void>
const CALLS: readonly {
  readonly name: string
  readonly filesMax: number
  readonly functionsMax: number
  send: Send
}[] = [
  { name: 'plain call', filesMax: 55, functionsMax: 280, send: (sluice) => chat(sluice, false) },
  { name: 'streamed call', filesMax: 65, functionsMax: 320, send: (sluice) => chat(sluice, true) },
  { name: 'durable call', filesMax: 75, functionsMax: 340, send: durable },
]

export const PATH: Section = {
  name: 'path',
  summary: 'product files and functions that one plain, streamed and durable call runs through',
  title: '## Code of a call',
  introduction: `Files and named functions of the product that one call runs through: one process, echo model, V8's precise coverage. Functions that also
run in an idle process are not counted.`,
  async measure(run) {
    const counts = await measurePath(run)
    const goals = CALLS.flatMap(({ name, filesMax, functionsMax }) => {
      const functions = counts.get(name) ?? []
      const measured = new Set(functions.map(fileOf)).size
      return [
        { name: `files of a ${name}`, measured, unit: '', max: filesMax, decimals: 0 },
        { name: `functions of a ${name}`, measured: functions.length, unit: '', max: functionsMax, decimals: 0 },
      ]
    })
    return [renderGoals(goals), renderFiles(counts)]
  },
}

export type PathCounts = ReadonlyMap<string, readonly string[]>

async function measurePath(run: Run): Promise<PathCounts> {
  await using processes = run.processes()
  const { flag, open } = await chooseInspector()
  const models = [`{ id: ${MODEL}, engine: { type: echo } }`]
  const sluice = await startSluice(processes, { name: 'path', models, nodeFlags: [flag] })
  using inspector = await open()
  await inspector.call('Profiler.enable')
  await inspector.call('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  await untilAnswered(() => chat(sluice, false).then(() => undefined, String))
  // The functions of the first call are not counted, because the first call also runs code that later calls do not
  // need.
  for (const { send } of CALLS) await send(sluice)
  await sleep(SETTLE_MS)
  await takeFunctions(inspector)
  await sleep(IDLE_MS)
  const idle = new Set(await takeFunctions(inspector))
  const counts = new Map<string, readonly string[]>()
  for (const { name, send } of CALLS) {
    run.signal.throwIfAborted()
    await send(sluice)
    await sleep(SETTLE_MS)
    counts.set(
      name,
      (await takeFunctions(inspector)).filter((each) => !idle.has(each)),
    )
  }
  return counts
}

interface Coverage {
  readonly result: readonly {
    readonly url: string
    readonly functions: readonly { readonly functionName: string; readonly ranges: readonly { count: number }[] }[]
  }[]
}

async function takeFunctions(inspector: Inspector): Promise<string[]> {
  const { result } = (await inspector.call('Profiler.takePreciseCoverage')) as Coverage
  return result.flatMap(({ url, functions }) => {
    const path = url.startsWith('file:') ? fileURLToPath(url) : ''
    const file = path.startsWith(ROOT) && !path.includes('/node_modules/') ? path.slice(ROOT.length) : undefined
    if (file === undefined) return []
    const ran = functions.filter(({ functionName, ranges }) => functionName !== '' && (ranges[0]?.count ?? 0) > 0)
    return [...new Set(ran.map(({ functionName }) => `${file}:${functionName}`))]
  })
}

function renderFiles(counts: PathCounts): string {
  const files = [...new Set([...counts.values()].flat().map(fileOf))].sort()
  const rows = files.map((file) => {
    const own = [...counts.values()].map((functions) => functions.filter((name) => fileOf(name) === file).length)
    return [`\`${file}\``, ...own.map(String)]
  })
  return renderTable(['functions by file', ...counts.keys()], rows)
}

function fileOf(name: string): string {
  return name.slice(0, name.indexOf(':'))
}

async function chat(sluice: Sluice, stream: boolean): Promise<void> {
  const { status } = await postChat(sluice, MODEL, CONTENT, { stream })
  if (status !== 200) throw new Error(`status ${status}`)
}

async function durable(sluice: Sluice): Promise<void> {
  const { text } = await postChat(sluice, MODEL, CONTENT, {}, { prefer: 'respond-async' })
  const { id } = JSON.parse(text) as { id: string }
  const url = new URL(`/v1/jobs/${id}?wait=20`, sluice.url)
  await (await fetch(url, { headers: { authorization: `Bearer ${sluice.key}` } })).text()
}
