/** Starts a real HAProxy (Debian package) that distributes calls over several ingresses by round robin, and checks their health with `/readyz`. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { until } from '../stack.ts'
import { freePort } from './free-ports.ts'

const BINARY = ['/usr/sbin/haproxy', '/usr/local/sbin/haproxy'].find((path) => existsSync(path))

export interface LoadBalancer extends AsyncDisposable {
  readonly url: string
}

export function whyNoHaproxy(): string | undefined {
  return BINARY ? undefined : 'no HAProxy (apt-get install haproxy)'
}

/**
 * Starts HAProxy for the ingresses on the given ports. An ingress gets no calls after two failed checks, 300 ms apart. After one successful check,
 * the ingress gets calls again.
 */
export async function startHaproxy(ports: readonly number[]): Promise<LoadBalancer> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-haproxy-'))
  const port = await freePort()
  const file = join(directory, 'haproxy.cfg')
  const servers = ports.map((each) => `  server s${each} 127.0.0.1:${each} check inter 300ms fall 2 rise 1`)
  await writeFile(
    file,
    `defaults\n  mode http\n  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n  timeout check 2s\n` +
      `frontend api\n  bind 127.0.0.1:${port}\n  default_backend ingresses\n` +
      `backend ingresses\n  balance roundrobin\n  option httpchk GET /readyz\n${servers.join('\n')}\n`,
  )
  const child = spawn(BINARY ?? '', ['-db', '-f', file], { stdio: 'ignore' })
  const exited = once(child, 'exit')
  const url = `http://127.0.0.1:${port}`
  const isReady = () =>
    fetch(`${url}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    )
  await until(isReady, { withinMs: 30_000 })
  return {
    url,
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL')
      await exited
      await rm(directory, { recursive: true, force: true })
    },
  }
}
