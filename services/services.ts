import { POOLS, type PoolName } from '#schemas/job.ts'
import type { Config } from '#shared/config/config.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { startCode } from './code/code.ts'
import { startEmbeddings } from './embeddings/embeddings.ts'
import { startInference } from './inference/inference.ts'
import { requirePort, startIngress } from './ingress/ingress.ts'
import { startResearch } from './research/research.ts'
import { startScheduler } from './scheduler/scheduler.ts'
import { startTranscription } from './transcription/transcription.ts'

/**
 * What a process can be: a worker of a pool, by the pool's name, or one that serves no pool alone. Batches are run by every ingress
 * (docs/design.md, Batches).
 */
export type Role = Exclude<PoolName, 'batches'> | 'scheduler' | 'ingress'

/** One service, as whoever starts processes sees it. */
export interface ServiceRow {
  readonly start: (ports: Ports) => Promise<Service>
  /** What it does, for people who choose roles. */
  readonly does: string
  /** Throws early, before anything is made, what {@link start} would throw later. */
  readonly check?: (config: Config) => Promise<void>
}

const ingress = 'HTTP API: turns requests into jobs and streams results back'
const scheduler = 'due and lost jobs, webhooks, purge; alone it needs DATABASE_URL'

/**
 * Every service by its role, in the order in which they start: workers before the ingress, so that the first call finds
 * one. The only place that sees them all.
 */
export const SERVICES: Readonly<Record<Role, ServiceRow>> = {
  inference: { start: startInference, does: `worker: ${POOLS.inference}` },
  embeddings: { start: startEmbeddings, does: `worker: ${POOLS.embeddings}` },
  transcription: { start: startTranscription, does: `worker: ${POOLS.transcription}` },
  code: { start: startCode, does: `worker: ${POOLS.code}` },
  research: { start: startResearch, does: `worker: ${POOLS.research}` },
  scheduler: { start: startScheduler, does: scheduler },
  ingress: { start: startIngress, does: ingress, check: requirePort },
}

/** Their names. */
export const ROLES = Object.keys(SERVICES) as Role[]
