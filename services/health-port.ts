import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { ConfigError } from '#shared/config/config.ts'
import type { Log } from '#shared/log/log.ts'
import type { Ports } from '#shared/ports.ts'
import { preparingOf } from '#shared/prepare-progress.ts'
import { answerHealth, type Health } from '#shared/process/health.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { createServer } from '#shared/process/node-http.ts'

/**
 * Health until the services have started. The process is live, so that an orchestrator does not kill it, but not ready.
 */
const STARTING: Health = { problems: () => ['the process is starting'], metrics: undefined }

export interface HealthPort {
  /** Replaces the starting state with the health of these services. The array is read on each request, so services that are added later count too. */
  show(services: readonly Service[], ports: Pick<Ports, 'metrics' | 'preparations'>): void
}

/**
 * Opens METRICS_PORT before any other part starts. The open port does not keep the process alive.
 *
 * @param port 0 selects a free port, which is logged.
 * @param host Address to listen on. Default: all addresses.
 * @throws ConfigError if the port is in use or this user may not open it
 */
export async function openHealthPort(port: number, host: string | undefined, log: Log): Promise<HealthPort> {
  let health = STARTING
  const server = createServer((req, res) => {
    if (!answerHealth(health, req, res)) res.writeHead(404).end()
  })
  server.listen(port, host)
  await once(server, 'listening').catch((error: unknown) => {
    throw portError(error, port)
  })
  server.on('error', (error) =>
    log.error({ err: error, port }, 'metrics port failed; metrics and health checks are not served'),
  )
  server.unref()
  log.info({ port: (server.address() as AddressInfo).port }, 'metrics port open')
  return {
    show(services, ports) {
      const problems = () => services.flatMap((service) => service.problems())
      health = { problems, preparing: () => preparingOf(ports), metrics: ports.metrics }
    },
  }
}

function portError(error: unknown, port: number): unknown {
  const { code } = error as NodeJS.ErrnoException
  if (code === 'EADDRINUSE') {
    const message = `METRICS_PORT: ${port} is in use. Each process needs its own port. Choose another port, or leave METRICS_PORT unset.`
    return new ConfigError([message])
  }
  if (code !== 'EACCES') return error
  return new ConfigError([
    `METRICS_PORT: this user cannot listen on ${port}. Choose a port from 1024 on, such as 8081.`,
  ])
}
