import { type CountTokensResult, GenerateRequest } from '#schemas/generate.ts'
import { isGenerateOutput, mergeGenerateEvents } from '#shared/engines/generate-events.ts'
import { estimateUsage } from '#shared/engines/upstream-usage.ts'
import { type Kind, Pool } from '#shared/jobs/pool.ts'
import type { Service } from '#shared/lifecycle.ts'
import type { Ports } from '#shared/ports.ts'
import { Engines } from './engines.ts'
import { generateWithFallback } from './fallback.ts'
import { prepareInBackground } from './prepare.ts'
import { withProgress } from './progress.ts'
import { recordCount, recordGenerate } from './recorder.ts'

/** Silence of the consume loop after which the worker makes no progress. */
const IDLE_MS_MAX = 10_000

/** Starts one worker of the inference pool: text generation on the engines of the model catalogue. */
export async function startInference(ports: Ports): Promise<Service> {
  const { config, log, metrics } = ports
  const engines = new Engines(ports)
  const generate: Kind = {
    parse: (body) => GenerateRequest.parse(body),
    run: (body, context) => {
      const request = body as GenerateRequest
      const events = generateWithFallback(engines, ports, request, context)
      return context.onProgress ? withProgress(events, request, context.onProgress) : events
    },
    merge: mergeGenerateEvents,
    isOutput: isGenerateOutput,
    openRecorder: recordGenerate,
  }
  const countTokens: Kind = {
    parse: (body) => GenerateRequest.parse(body),
    async *run(body, context): AsyncGenerator<CountTokensResult> {
      const request = body as GenerateRequest
      const counted = await engines.get(request.model).countTokens?.(request, context)
      yield { input_tokens: counted ?? (await estimateUsage(request, '')).input_tokens }
    },
    merge: () => undefined,
    isOutput: () => true,
    openRecorder: recordCount,
  }
  const pool = await Pool.open(
    { name: 'inference', slots: config.inferenceSlots, kinds: { generate, count_tokens: countTokens } },
    {
      broker: ports.broker,
      blobs: ports.blobs,
      log,
      version: ports.version,
      store: ports.store,
      leaseMs: config.jobLeaseMs,
      onFatal: ports.onFatal,
      observer: {
        onEnd: (job, end, durationMs) => {
          metrics.attempts.inc({ pool: job.pool, end })
          metrics.attemptSeconds.observe({ pool: job.pool, model: job.model }, durationMs / 1_000)
        },
      },
    },
  )
  metrics.gauge('sluice_pool_running', 'Attempts that run on this worker', { pool: 'inference' }, () => pool.running)
  metrics.gauge(
    'sluice_pool_slots',
    'Attempts this worker runs at most',
    { pool: 'inference' },
    () => config.inferenceSlots,
  )
  metrics.gauge('sluice_queue_lag', 'Records in the queue that nobody acknowledged', { pool: 'inference' }, () =>
    ports.broker.lag('jobs.inference'),
  )
  const preparing = prepareInBackground(ports)
  return {
    name: 'inference',
    drain: (signal) => pool.drain(signal),
    problems: () => (pool.idleMs > IDLE_MS_MAX ? ['The inference worker takes no jobs.'] : []),
    async close() {
      await preparing.stop()
      await pool.close()
      await engines.close()
    },
  }
}
