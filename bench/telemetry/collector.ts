/*
 * Mock collector of traces (OTLP over HTTP), in its own process. The collector accepts every request and discards its body. Prints its address
 * on standard output.
 */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

const server = createServer((req, res) => {
  req.resume().once('end', () => res.writeHead(200).end())
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
