import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { ConfigError } from '#shared/config/config.ts'
import type { Log } from '#shared/log/log.ts'
import type { Ports } from '#shared/ports.ts'
import { preparingOf } from '#shared/prepare/progress.ts'
import { answerHealth, type Health } from '#shared/process/health.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { createServer } from '#shared/process/node-http.ts'

/** Until its parts are there, a process lives and is not ready: what watches over it is not to end it meanwhile. */
const STARTING: Health = { problems: () => ['it is being started'], metrics: undefined }

/** The port that shows health and metrics alone. */
export interface HealthPort {
  /** From now on it shows how these do, also those that are added later. */
  show(services: readonly Service[], ports: Pick<Ports, 'metrics'>): void
}

/**
 * Opens the port of METRICS_PORT, before anything else is done. It keeps no process from ending.
 *
 * @param port 0: a free one, which the log tells.
 * @param host Address to listen on; default: all.
 * @throws ConfigError when it is taken, or not for this user
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
  server.on('error', (error) => log.error({ err: error, port }, 'metrics port failed'))
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
    const message = `METRICS_PORT: ${port} is in use. Each process needs one of its own: choose another, or leave it unset.`
    return new ConfigError([message])
  }
  if (code !== 'EACCES') return error
  return new ConfigError([`METRICS_PORT: this user may not listen on ${port}. Choose one from 1024 on, such as 8081.`])
}
