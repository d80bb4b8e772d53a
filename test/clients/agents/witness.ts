import { createServer, type IncomingMessage, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'

/**
 * A recording proxy between an agent and Sluice. The output of an agent does not show refused requests, because the agent retries them with
 * fewer features. The proxy therefore records each refusal.
 */
export interface Witness extends AsyncDisposable {
  readonly url: string
  /** POST requests with a status other than 200, with the response. */
  readonly refusals: readonly string[]
  /** Model names in the responses. */
  readonly models: readonly string[]
}

const ANSWER_CHARS_MAX = 500

/** @param target Base URL of Sluice */
export async function startWitness(target: string): Promise<Witness> {
  const refusals: string[] = []
  const models = new Set<string>()
  const server = createServer((request, response) => {
    const { method, url, headers } = request
    const forwarded = send(new URL(String(url), target), { method, headers }, (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(response)
      void read(request, answer)
    })
    forwarded.on('error', () => response.destroy())
    request.pipe(forwarded)
  })

  async function read({ method, url }: IncomingMessage, answer: IncomingMessage): Promise<void> {
    const chunks: Buffer[] = []
    answer.on('data', (chunk: Buffer) => chunks.push(chunk))
    await new Promise((resolve) => answer.on('close', resolve))
    const text = Buffer.concat(chunks).toString()
    if (method === 'POST' && answer.statusCode !== 200) {
      refusals.push(`${url}: ${answer.statusCode} ${text.slice(0, ANSWER_CHARS_MAX)}`)
    }
    for (const [, name = ''] of text.matchAll(/^data: \{.{0,400}?"model":"([^"]+)"/gm)) models.add(name)
  }

  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    refusals,
    get models() {
      return [...models]
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}
