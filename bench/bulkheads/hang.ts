/** An upstream that takes every call and answers none, as a process of its own. Prints its address on standard output. */
import { type AddressInfo, createServer } from 'node:net'

const server = createServer((socket) => {
  socket.on('error', () => socket.destroy())
  socket.resume()
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
