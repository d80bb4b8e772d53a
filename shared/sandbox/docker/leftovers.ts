import type Docker from 'dockerode'
import type { Log } from '#shared/log/log.ts'
import { LABEL } from './container.ts'

/** One that is younger may be another service's, about to be started. */
const LEFTOVER_SECONDS = 120
const REMOVE_MS_MAX = 10_000

/**
 * Removes what a killed service left: containers that were made and never started, or that ended and stayed. One that runs
 * ends by itself as soon as its service is gone, so those that run have one.
 *
 * @param olderThanSeconds Younger ones stay; default two minutes.
 * @throws an error of the daemon when it does not list them
 */
export async function removeLeftovers(docker: Docker, log: Log, olderThanSeconds = LEFTOVER_SECONDS): Promise<void> {
  const filters = { label: [LABEL], status: ['created', 'exited', 'dead'] }
  const abortSignal = AbortSignal.timeout(REMOVE_MS_MAX)
  for (const { Id, Created, Status } of await docker.listContainers({ all: true, filters, abortSignal })) {
    if (Date.now() / 1000 - Created < olderThanSeconds) continue
    log.info({ container: Id, status: Status }, 'removing a container that a sandbox left')
    const gone = docker.getContainer(Id).remove({ force: true, v: true, abortSignal })
    await gone.catch((error: unknown) => log.warn({ err: error, container: Id }, 'container not removed'))
  }
}
