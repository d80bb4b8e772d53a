/**
 * One batch of echo requests, with the service killed on the way: what came out, how often, with how much memory, and how long plain
 * calls of another project took meanwhile.
 *
 *   node bench/batches/run.ts [requests, default 50000] [kills, default 3]
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Processes, type Running, run } from '../machine/processes.ts'
import { residentMib } from '../machine/usage.ts'
import { callsOf, quantile } from './beside.ts'

const KEY = 'sk-bench-0123456789'
const LOOK_MS = 500
/** Calls of the other project a second. */
const RATE = 5
const BASELINE_MS = 10_000
const PATH = '/v1/chat/completions'
const MODELS = 'models: [{ id: echo-1, engine: { type: echo } }]\n'

const [requests = 50_000, kills = 3] = process.argv.slice(2).map(Number)
const print = (line: string) => void process.stdout.write(`${line}\n`)
process.exitCode = await main()

interface Batch {
  readonly id: string
  readonly status: string
  readonly output_file_id: string | null
  readonly error_file_id: string | null
  readonly request_counts: { readonly total: number; readonly completed: number; readonly failed: number }
}

async function main(): Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), 'sluice-batches-'))
  try {
    await using processes = new Processes(dir, undefined)
    return await measure(processes, dir)
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

async function measure(processes: Processes, dir: string): Promise<number> {
  writeFileSync(join(dir, 'models.yaml'), MODELS)
  const env = { PORT: '0', DATA_DIR: join(dir, 'data'), MODELS_FILE: join(dir, 'models.yaml'), SLUICE_API_KEY: KEY }
  const start = async () =>
    await processes.node({ name: 'service', script: '../services/main.ts', args: [], env, addressOn: 'stderr' })
  const cli = resolve(import.meta.dirname, '../../services/cli/sluice.js')
  const service: { now: Running } = { now: await start() }
  const other = JSON.parse(await run(process.execPath, [cli, 'keys', 'create', '--json'], env)) as {
    secret?: string
    key?: string
  }
  const call = callsOf(() => service.now.url, String(other.secret ?? other.key))
  const alone = await callsFor(call, BASELINE_MS)
  const file = await post(service.now, '/v1/files', formOf(requests))
  const startedAt = performance.now()
  let batch = (await post(service.now, '/v1/batches', {
    input_file_id: file.id,
    endpoint: PATH,
    completion_window: '24h',
  })) as unknown as Batch
  const stop = new AbortController()
  const beside = callsUntil(call, stop.signal)
  const memory: number[] = []
  let killed = 0
  while (!['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) {
    await delay(LOOK_MS)
    batch = await look(service.now, batch)
    memory.push(residentMib(service.now.pid))
    const done = batch.request_counts.completed + batch.request_counts.failed
    if (killed === kills || done < (requests * (killed + 1)) / (kills + 1)) continue
    killed++
    print(`killed at ${done} of ${requests}, after ${seconds(startedAt)} s`)
    process.kill(service.now.pid, 'SIGKILL')
    service.now = await start()
  }
  print(
    `${batch.status} after ${seconds(startedAt)} s, killed ${killed} times: ${JSON.stringify(batch.request_counts)}`,
  )
  stop.abort()
  const busy = await beside
  const names = await namesIn(service.now, batch.output_file_id)
  const jobs = await jobsOf(service.now, batch.id)
  print(
    `results ${names.length}, of them different ${new Set(names).size}; jobs of requests ${jobs.all}, ended ${jobs.completed}, run again ${jobs.again}`,
  )
  print(
    `memory MiB: first quarter ${middle(memory, 0)}, last quarter ${middle(memory, 3)}, most ${Math.round(Math.max(...memory))}`,
  )
  print(
    `calls beside, ms: p50 ${quantile(alone, 0.5)} alone, ${quantile(busy, 0.5)} beside; p99 ${quantile(alone, 0.99)} alone, ${quantile(busy, 0.99)} beside (${busy.length} calls)`,
  )
  return names.length === requests && new Set(names).size === requests && jobs.all === requests ? 0 : 1
}

function seconds(since: number): string {
  return ((performance.now() - since) / 1_000).toFixed(0)
}

/** The median of one quarter of the samples. */
function middle(samples: readonly number[], quarter: number): number {
  const size = Math.ceil(samples.length / 4)
  return Math.round(quantile(samples.slice(quarter * size, (quarter + 1) * size), 0.5))
}

function formOf(count: number): FormData {
  const lines = Array.from({ length: count }, (_, i) => {
    const body = { model: 'echo-1', messages: [{ role: 'user', content: `number ${i}` }] }
    return JSON.stringify({ custom_id: `r${i}`, method: 'POST', url: PATH, body })
  })
  const form = new FormData()
  form.append('purpose', 'batch')
  form.append('file', new Blob([lines.join('\n')]), 'requests.jsonl')
  return form
}

async function post({ url }: Running, path: string, body: FormData | object): Promise<{ id: string }> {
  const isForm = body instanceof FormData
  const headers = { authorization: `Bearer ${KEY}`, ...(!isForm && { 'content-type': 'application/json' }) }
  const response = await fetch(new URL(path, url), {
    method: 'POST',
    headers,
    body: isForm ? body : JSON.stringify(body),
  })
  if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`)
  return (await response.json()) as { id: string }
}

/** The batch as it is; as it was where the service is busy coming up. */
async function look({ url }: Running, known: Batch): Promise<Batch> {
  const response = await fetch(new URL(`/v1/batches/${known.id}`, url), { headers: { authorization: `Bearer ${KEY}` } })
  return response.ok ? ((await response.json()) as Batch) : known
}

async function namesIn({ url }: Running, file: string | null): Promise<string[]> {
  if (file === null) return []
  const response = await fetch(new URL(`/v1/files/${file}/content`, url), {
    headers: { authorization: `Bearer ${KEY}` },
  })
  const lines = (await response.text()).split('\n').filter((line) => line !== '')
  return lines.map((line) => (JSON.parse(line) as { custom_id: string }).custom_id)
}

/** The jobs of the requests, as the service lists them. */
async function jobsOf({ url }: Running, id: string): Promise<{ all: number; completed: number; again: number }> {
  const count = { all: 0, completed: 0, again: 0 }
  for (let after = ''; ; ) {
    const path = `/v1/jobs?group=${id}&limit=100${after && `&after=${after}`}`
    const response = await fetch(new URL(path, url), { headers: { authorization: `Bearer ${KEY}` } })
    const page = (await response.json()) as JobPage
    for (const { status, attempt } of page.data) {
      count.all++
      if (status === 'completed') count.completed++
      if (attempt > 1) count.again++
    }
    if (!page.has_more || page.last_id === null) return count
    after = page.last_id
  }
}

interface JobPage {
  readonly data: readonly { readonly status: string; readonly attempt: number }[]
  readonly has_more: boolean
  readonly last_id: string | null
}

async function callsFor(call: () => Promise<number | undefined>, ms: number): Promise<number[]> {
  return await callsUntil(call, AbortSignal.timeout(ms))
}

async function callsUntil(call: () => Promise<number | undefined>, signal: AbortSignal): Promise<number[]> {
  const took: number[] = []
  while (!signal.aborted) {
    const ms = await call()
    if (ms !== undefined) took.push(ms)
    await delay(1_000 / RATE, undefined, { signal }).catch(() => {})
  }
  return took
}
