import { POOLS, type PoolName } from '#schemas/job.ts'
import type { Config } from '#shared/config/config.ts'
import type { Ports } from '#shared/ports.ts'
import type { Service } from '#shared/process/lifecycle.ts'

/**
 * Part that a process can run: a worker, named after its pool, or `scheduler` or `ingress`. The pool `batches` has no
 * worker, because every ingress runs its batches (docs/internals/design.md, Composed jobs).
 */
export type Role = Exclude<PoolName, 'batches'> | 'scheduler' | 'ingress'

export interface ServiceRow {
  readonly start: (ports: Ports) => Promise<Service>
  /** Description for operators, shown by `--help`. */
  readonly does: string
  /** Throws, before any resource is opened, the configuration errors that {@link start} would throw later. */
  readonly check?: (config: Config) => Promise<void>
}

const ingress = 'HTTP API: turns requests into jobs and streams results back'
const scheduler = 'requeues lost jobs, sends webhooks; needs DATABASE_URL if alone'

/**
 * Every service by its role, in start order. Workers precede the ingress, so that the first call finds a worker. Each
 * service is imported when it starts, so that a process loads only the code of its roles.
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

export const ROLES = Object.keys(SERVICES) as Role[]

function worker(pool: PoolName, start: ServiceRow['start']): ServiceRow {
  return { start, does: `worker: ${POOLS[pool].work}` }
}
