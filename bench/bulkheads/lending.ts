import { setTimeout as sleep } from 'node:timers/promises'
import { type Address, Callers, type Seen } from '../calls/load.ts'
import { startTarget, startUpstream } from '../calls/targets.ts'
import { percentile } from '../figures/stats.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'
import { type BulkheadOptions, engineAt, start } from './measure.ts'

/** Callers of the one model that is busy: as many as the service has slots by default. */
export const STREAMS = 256
/** Models of the service; all but one are idle. */
const MODELS = ['bench', 'bench-2', 'bench-3', 'bench-4'] as const
export const MODEL_COUNT = MODELS.length
/** Both directions: which model holds every slot, and which one comes. */
const ARRIVALS = [
  ['bench', 'bench-2'],
  ['bench-2', 'bench'],
] as const
/** Callers of the model that comes: with those of the other, more than there are slots. */
export const ARRIVING = 16
/** Time after which the first model holds every slot. */
const FILL_MS = 2_500
const WARM_UP_SECONDS = 2

/** Streams of one model through one target in one round. */
export interface LendingSample {
  readonly target: 'proxy' | 'embedded' | 'kafka'
  readonly round: number
  readonly tokensPerSecond: number
  readonly failures: number
  /** Times to the first token, in milliseconds. */
  readonly p50: number
  readonly p99: number
  /** Maximum time to the first token of streams of a second model that come while the first holds every slot, by direction. */
  readonly arrivals: readonly number[]
}

/** Measures one busy model among idle ones next to a bare proxy, in the same rounds, and calls of a second one that come. */
export async function measureLending(
  { rounds, seconds, print, signal }: BulkheadOptions & { readonly seconds: number },
  kafka: Kafka | undefined,
  dir: string,
): Promise<LendingSample[]> {
  const samples: LendingSample[] = []
  await using processes = new Processes(dir, undefined)
  const upstream = await startUpstream(processes)
  const models = MODELS.map((id) => `  - { id: ${id}, engine: ${engineAt(upstream)} }\n`)
  const { address: proxy } = await startTarget('proxy', upstream, processes, kafka, {
    beside: undefined,
    gateways: [],
  })
  const own = { processes, models, slots: undefined }
  const targets = new Map<LendingSample['target'], Address>([['proxy', proxy]])
  targets.set('embedded', await start({ ...own, target: 'embedded', name: 'lending-embedded', kafka }))
  if (kafka) targets.set('kafka', await start({ ...own, target: 'kafka', name: 'lending-kafka', kafka }))
  for (const address of targets.values()) await streams({ ...address, model: MODELS[0] }, STREAMS, WARM_UP_SECONDS)
  for (let round = 1; round <= rounds; round++) {
    for (const [target, address] of targets) {
      signal.throwIfAborted()
      const seen = await streams({ ...address, model: MODELS[0] }, STREAMS, seconds)
      const arrivals: number[] = []
      for (const [first, second] of target === 'proxy' ? [] : ARRIVALS)
        arrivals.push(await arrival(address, first, second))
      samples.push({ target, round, ...figuresOf(seen), arrivals })
      const { tokensPerSecond, p99 } = figuresOf(seen)
      const text = `${tokensPerSecond.toFixed(0)} tokens/s, first token p99 ${p99.toFixed(0)} ms`
      const later = arrivals.length > 0 ? `, a second model within ${Math.max(...arrivals).toFixed(0)} ms` : ''
      print(`${round}/${rounds} bulkheads ${target} ${STREAMS} streams of one model: ${text}${later}`)
    }
  }
  return samples
}

function figuresOf({ firstTokens, lags, seconds, failures }: Seen) {
  const [p50, p99] = [percentile(firstTokens, 0.5), percentile(firstTokens, 0.99)]
  return { tokensPerSecond: lags.length / seconds, failures, p50, p99 }
}

/** Streams of a model for so long; callers begin one after the other. */
async function streams(address: Address, count: number, seconds: number): Promise<Seen> {
  const callers = await Callers.open(address, 'streams', count)
  const seen = await callers.run(seconds)
  callers.close()
  return seen
}

/** Maximum time to the first token of the first stream of each caller that comes while another model holds every slot. */
async function arrival(address: Address, first: string, second: string): Promise<number> {
  const [busy, arriving] = await Promise.all([
    Callers.open({ ...address, model: first }, 'streams', 2 * STREAMS),
    Callers.open({ ...address, model: second }, 'lockstep', ARRIVING),
  ])
  const running = busy.run(FILL_MS / 1_000 + 0.5)
  await sleep(FILL_MS)
  const { firstTokens, failure } = await arriving.run(0)
  await running
  for (const callers of [busy, arriving]) callers.close()
  if (failure) throw new Error(`a call of a second model failed: ${failure}`)
  return Math.max(...firstTokens)
}
