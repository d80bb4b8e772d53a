import { type Processes, type Running, urlOf } from '../machine/processes.ts'
import { KEY } from '../machine/sluice.ts'

export async function startUpstream(processes: Processes): Promise<URL> {
  return urlOf(await processes.node({ name: 'upstream', script: './load/upstream.ts', addressOn: 'stdout' }))
}

export async function startProxy(processes: Processes, upstream: URL): Promise<Running> {
  const start = { name: 'proxy', script: './load/proxy.ts', addressOn: 'stdout', isProfiled: true } as const
  return await processes.node({ ...start, args: [upstream.href, KEY] })
}
