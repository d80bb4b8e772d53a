import { stat } from 'node:fs/promises'
import { ServiceError } from '#shared/lib/error.ts'

/** Socket of the daemon unless DOCKER_HOST is set. */
const SOCKET = '/var/run/docker.sock'

/**
 * Checks whether there may be a Docker daemon before its client library is loaded, which takes 50 MB.
 *
 * @param host DOCKER_HOST
 * @throws ServiceError `sandbox_unavailable` if there is none
 */
export async function requireDockerSocket(host: string | undefined): Promise<void> {
  const isThere = Boolean(host) || (await stat(SOCKET).catch(() => undefined))?.isSocket()
  if (isThere) return
  throw new ServiceError('sandbox_unavailable', 'No Docker daemon responds. Start one, or set DOCKER_HOST.')
}
