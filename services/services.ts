import { POOLS, type PoolName } from '#schemas/job.ts'
import type { Config } from '#shared/config/config.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'

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
 * one. The only place that sees them all. The code of a service is loaded when it starts: a process holds what its roles need.
 */
export const SERVICES: Readonly<Record<Role, ServiceRow>> = {
  inference: worker('inference', async (ports) => (await import('./inference/inference.ts')).startInference(ports)),
  embeddings: worker('embeddings', async (ports) =>
    (await import('./embeddings/embeddings.ts')).startEmbeddings(ports),
  ),
  transcription: worker('transcription', async (ports) =>
    (await import('./transcription/transcription.ts')).startTranscription(ports),
  ),
  code: worker('code', async (ports) => (await import('./code/code.ts')).startCode(ports)),
  research: worker('research', async (ports) => (await import('./research/research.ts')).startResearch(ports)),
  scheduler: {
    start: async (ports) => (await import('./scheduler/scheduler.ts')).startScheduler(ports),
    does: scheduler,
  },
  ingress: {
    start: async (ports) => (await import('./ingress/ingress.ts')).startIngress(ports),
    does: ingress,
    check: async (config) => (await import('./ingress/ingress.ts')).requirePort(config),
  },
}

/** Their names. */
export const ROLES = Object.keys(SERVICES) as Role[]

function worker(pool: PoolName, start: ServiceRow['start']): ServiceRow {
  return { start, does: `worker: ${POOLS[pool]}` }
}
