import { stat } from 'node:fs/promises'
import { ServiceError } from '#shared/lib/error.ts'

const SOCKET = '/var/run/docker.sock'

/**
 * Checks whether a Docker daemon may exist. The check precedes the loading of the client library, which takes 50 MB.
 *
 * @param host DOCKER_HOST
 * @throws ServiceError `sandbox_unavailable` if there is no daemon
 */
export async function requireDockerSocket(host: string | undefined): Promise<void> {
  const isThere = Boolean(host) || (await stat(SOCKET).catch(() => undefined))?.isSocket()
  if (isThere) return
  throw new ServiceError('sandbox_unavailable', 'No Docker daemon responds. Start one, or set DOCKER_HOST.')
}
