import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'

/** Returns ports that were free a moment ago. All ports are opened before the first is closed, so that no port occurs twice. */
export async function freePorts(count: number): Promise<number[]> {
  const probes = await Promise.all(
    Array.from({ length: count }, async () => {
      const probe = createServer().listen(0, '127.0.0.1')
      await once(probe, 'listening')
      return probe
    }),
  )
  const ports = probes.map((probe) => (probe.address() as AddressInfo).port)
  await Promise.all(probes.map((probe) => new Promise((resolve) => probe.close(resolve))))
  return ports
}

export async function freePort(): Promise<number> {
  const [port] = await freePorts(1)
  return port as number
}
