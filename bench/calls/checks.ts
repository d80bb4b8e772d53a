import { createHash } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'

const BODY_BYTES_MAX = 32 * 1024 * 1024
const MODELS = new Set(['bench'])

/** Checks of a call what every gateway must: its key, its path, its body. It answers what is wrong itself. */
export function checked(key: string, then: (body: Buffer, req: IncomingMessage, res: ServerResponse) => void) {
  const keyHashes = new Set([sha256(key)])
  return (req: IncomingMessage, res: ServerResponse): void => {
    const secret = /^bearer +(\S+) *$/i.exec(req.headers.authorization ?? '')?.[1]
    if (!secret || !keyHashes.has(sha256(secret))) return refuse(res, 401, 'Incorrect API key provided.')
    if (req.method !== 'POST' || req.url !== '/v1/chat/completions') return refuse(res, 404, 'Invalid URL')
    readBody(req, res, (body) => {
      const problem = problemOf(body)
      if (problem) return refuse(res, 400, problem)
      then(body, req, res)
    })
  }
}

/** Ends a call with an error, or what was begun of its answer. */
export function refuse(res: ServerResponse, status: number, message: string): void {
  if (!res.headersSent) res.writeHead(status, { 'content-type': 'application/json' })
  res.end(JSON.stringify({ error: { message } }))
}

function readBody(req: IncomingMessage, res: ServerResponse, then: (body: Buffer) => void): void {
  const chunks: Buffer[] = []
  let bytes = 0
  req.on('data', (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > BODY_BYTES_MAX) return refuse(res, 413, 'The body is too large.')
    chunks.push(chunk)
  })
  req.on('end', () => then(chunks.length === 1 && chunks[0] ? chunks[0] : Buffer.concat(chunks)))
}

function problemOf(body: Buffer): string | undefined {
  try {
    const { model, messages } = JSON.parse(body.toString()) as { model?: unknown; messages?: unknown }
    if (typeof model !== 'string' || !MODELS.has(model)) return 'The model does not exist.'
    if (!Array.isArray(messages) || messages.length === 0) return "Missing required parameter: 'messages'."
    return undefined
  } catch {
    return 'The body is not a JSON object.'
  }
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}
