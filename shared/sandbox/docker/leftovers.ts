import type Docker from 'dockerode'
import type { Log } from '#shared/log/log.ts'
import { LABEL } from './container.ts'

/** Minimum age of a removed container. A younger one may belong to another service that is about to start it. */
const LEFTOVER_SECONDS = 120
const REMOVE_MS_MAX = 10_000

/**
 * Removes containers that a killed service has left: never started, or ended without being removed. Running containers are not removed,
 * because they end by themselves when their service is gone.
 *
 * @param olderThanSeconds Minimum age; default: two minutes.
 * @throws Error of the daemon if it does not list containers
 */
export async function removeLeftovers(docker: Docker, log: Log, olderThanSeconds = LEFTOVER_SECONDS): Promise<void> {
  const filters = { label: [LABEL], status: ['created', 'exited', 'dead'] }
  const abortSignal = AbortSignal.timeout(REMOVE_MS_MAX)
  for (const { Id, Created, Status } of await docker.listContainers({ all: true, filters, abortSignal })) {
    if (Date.now() / 1000 - Created < olderThanSeconds) continue
    log.info({ container: Id, status: Status }, 'removing orphaned sandbox container')
    const gone = docker.getContainer(Id).remove({ force: true, v: true, abortSignal })
    await gone.catch((error: unknown) =>
      log.warn({ err: error, container: Id }, 'sandbox container could not be removed'),
    )
  }
}
