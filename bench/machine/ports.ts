import { once } from 'node:events'
import { connect, createServer } from 'node:net'

/** A port of 127.0.0.1 that nobody listens on now, for programs that cannot say which one they got. */
export async function freePort(): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as { port: number }
  probe.close()
  await once(probe, 'close')
  return port
}

/** Whether somebody listens on a port of 127.0.0.1. */
export async function isListening(port: number): Promise<boolean> {
  const socket = connect({ host: '127.0.0.1', port })
  const isOpen = await once(socket, 'connect').then(
    () => true,
    () => false,
  )
  socket.destroy()
  return isOpen
}
