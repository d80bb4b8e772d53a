/**
 * Finds an S3 server for tests: the one in S3_TEST_ENDPOINT with the credentials in AWS_*, otherwise moto (PyPI) in a process of its own.
 * Requests pass through a proxy, which can simulate faults.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3'
import type { S3Location } from '#shared/blobs/s3.ts'
import { newId } from '#shared/lib/id.ts'
import { until } from '../stack.ts'
import { freePort } from './free-ports.ts'
import { findPythonEnv } from './python.ts'

const CREDENTIALS = { AWS_ACCESS_KEY_ID: 'test', AWS_SECRET_ACCESS_KEY: 'testsecret' }
const SLOW_DOWN =
  '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'

/**
 * Faults of the proxy. `down`: each connection is closed. `unanswered`: the connection is closed after the server has executed the request.
 * `held`: requests get no answer until the next fault is set. `slow-down`: requests get status 503. `truncate`: answers are cut after a few
 * bytes.
 */
export type Fault = 'none' | 'down' | 'unanswered' | 'held' | 'slow-down' | 'truncate'

export interface TestS3 extends AsyncDisposable {
  readonly endpoint: string
  /** Bucket, and address of the proxy as its endpoint. */
  readonly location: S3Location
  /** Environment variables with which a service process uses this server. */
  readonly settings: Readonly<Record<string, string>>
  /** Requests that the proxy received so far, as `METHOD path`. */
  readonly requests: readonly string[]
  /**
   * Sets the fault of the proxy.
   * @param times Number of requests with the fault; later requests have none
   * @param only If given, then only requests whose `METHOD path` matches have the fault
   */
  fail(fault: Fault, times?: number, only?: RegExp): void
}

/**
 * Starts the server and its proxy. Returns undefined if there is no server. The credentials are also set in this process, because the AWS SDK
 * reads them from the environment.
 */
export async function startS3(): Promise<TestS3 | undefined> {
  const given = process.env.S3_TEST_ENDPOINT
  const server = given ? { url: given, stop: async () => undefined } : await startMoto()
  if (!server) return undefined
  for (const [name, value] of Object.entries(CREDENTIALS)) process.env[name] ??= value
  const bucket = `sluice-${newId('t', 8)
    .toLowerCase()
    .replace(/[^a-z0-9]/g, '')}`
  const admin = new S3Client({ endpoint: server.url, region: 'us-east-1', forcePathStyle: true })
  await until(
    () =>
      admin.send(new CreateBucketCommand({ Bucket: bucket })).then(
        () => true,
        () => false,
      ),
    { withinMs: 60_000 },
  )
  admin.destroy()
  const proxy = await startProxy(server.url)
  const none = { region: undefined, encryption: undefined, kmsKey: undefined }
  return {
    endpoint: proxy.url,
    location: { bucket, prefix: '', endpoint: proxy.url, ...none },
    settings: { BLOB_URL: `s3://${bucket}/sluice`, BLOB_S3_ENDPOINT: proxy.url, ...CREDENTIALS },
    requests: proxy.requests,
    fail: proxy.fail,
    async [Symbol.asyncDispose]() {
      proxy.close()
      await server.stop()
    },
  }
}

async function startMoto() {
  const bin = await findPythonEnv('moto', ['moto[s3,server]==5.2.5'])
  if (!bin) return undefined
  const port = await freePort()
  const child = spawn(`${bin}/moto_server`, ['-H', '127.0.0.1', '-p', String(port)], { stdio: 'ignore' })
  const exited = once(child, 'exit')
  return {
    url: `http://127.0.0.1:${port}`,
    async stop() {
      child.kill('SIGKILL')
      await exited
    },
  }
}

async function startProxy(target: string) {
  let fault: Fault = 'none'
  let left = 0
  let failing = /./
  const requests: string[] = []
  const held: Socket[] = []
  const takeFault = (of: string): Fault => {
    if (left <= 0 || !failing.test(of)) return 'none'
    left--
    return fault
  }
  const server = createServer((req, res) => {
    requests.push(`${req.method} ${req.url}`)
    const now = takeFault(`${req.method} ${req.url}`)
    if (now === 'down') req.socket.destroy()
    else if (now === 'held') held.push(req.socket)
    else if (now === 'slow-down') res.writeHead(503, { 'content-type': 'application/xml' }).end(SLOW_DOWN)
    else forward(target, req, res, now)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    requests,
    fail(next: Fault, times = Number.POSITIVE_INFINITY, only = /./) {
      fault = next
      failing = only
      left = next === 'none' ? 0 : times
      for (const socket of held.splice(0)) socket.destroy()
    },
    close: () => {
      server.closeAllConnections()
      server.close()
    },
  }
}

/** Forwards a request to the server. The Host header is not changed, because the signature of the request covers it. */
function forward(target: string, req: IncomingMessage, res: ServerResponse, fault: Fault): void {
  const { hostname, port } = new URL(target)
  const out = request({ hostname, port, method: req.method, path: req.url, headers: req.headers }, (answer) => {
    answer.on('error', () => res.destroy())
    if (fault === 'unanswered') return void answer.resume().on('end', () => res.destroy())
    res.writeHead(answer.statusCode ?? 502, answer.headers)
    if (fault !== 'truncate') return void answer.pipe(res)
    answer.once('data', (chunk: Buffer) => {
      answer.destroy()
      res.write(chunk.subarray(0, Math.ceil(chunk.length / 2)), () => res.destroy())
    })
  })
  out.on('error', () => res.destroy())
  res.on('close', () => res.writableFinished || out.destroy())
  req.pipe(out)
}
