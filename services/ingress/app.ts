/*
 * The HTTP application of the ingress: one handler for every row of the route table (`routes.ts`).
 *
 * A request passes these checks in order. `shared/capacity/capacity.ts` lists the numbered gates, which delay or refuse work.
 * 1. Request id, Host header, and route (404, 405). Nearly all requests match an inference path and then skip Express,
 *    which would compare the path with every route.
 * 2. API key (401, 403).
 * 3. Limits of the key and the spent budget: gates 1 and 2 (429).
 * 4. Body: size, time and type (400, 408, 413, 415), and memory, which is gate 3 (503).
 * 5. `answerCall` for endpoints that create jobs, otherwise the handler of the row.
 *
 * The invariant: when a call ends, even by a failure, its reservations of tokens, budget, memory and stored bytes are released. Uploads
 * that no durable job has taken over are deleted.
 */

import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type NextFunction, type Request, type Response } from 'express'
import { enterCall } from '#shared/capacity/capacity.ts'
import { type ApiKey, KEY_ENDPOINTS, projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import { readJsonBody, sendError, type WireFormat } from './body/body.ts'
import { authenticate, authorize, setLimitHeaders } from './callers/keys.ts'
import { answerCall } from './calls/answer.ts'
import { type Call, COMPLETED, type IngressContext } from './calls/call.ts'
import { CallBodies } from './calls/call-bodies.ts'
import type { CallLog } from './calls/call-log.ts'
import { isJobSubmission } from './calls/job-options.ts'
import { HttpReply, type RoutedRequest } from './http/reply.ts'
import { type Route, routesOf } from './routes.ts'

export function openApp(context: IngressContext): (req: IncomingMessage, res: ServerResponse) => void {
  const app = express()
  const routes = routesOf(context.endpoints)
  const calls = callsOf(routes)
  app.disable('x-powered-by')
  app.disable('etag')
  // With these two settings, Express matches paths exactly, so each endpoint has only one spelling.
  app.enable('case sensitive routing')
  app.enable('strict routing')
  app.use((req, res, next) => {
    const locals: Locals = { reply: new HttpReply(context, req, res) }
    Object.assign(res.locals, locals)
    next()
  })
  for (const route of routes) {
    const path = route.path.replace('/*', '/*rest')
    const method = route.method.toLowerCase() as 'get' | 'post' | 'delete'
    app[method](path, (req, res) => answer(context, route, (res.locals as Locals).reply, req))
  }
  for (const route of routes) {
    app.all(route.path.replace('/*', '/*rest'), (req, res) => {
      recordUnknown(context, (res.locals as Locals).reply, req)
      refuseMethod(routes, route.path, req, res)
    })
  }
  const paths = routes.map(({ path }) => path)
  app.use((req: Request, res: Response) => {
    recordUnknown(context, (res.locals as Locals).reply, req)
    throw new ServiceError('not_found', notFoundMessage(req.method, req.path, paths))
  })
  app.use((thrown: unknown, _req: Request, res: Response, _next: NextFunction) => {
    const { reply } = res.locals as Locals
    reply.end({ type: 'failed', thrown })
  })
  return (req, res) => {
    const target = req.url ?? ''
    if (!target.startsWith('/') && target !== '*') {
      // A proxy may send an absolute URL (RFC 9112 §3.2.2), for which Express throws or answers in its own format.
      const url = URL.parse(target)
      if (!url) return refuseTarget(res)
      req.url = url.pathname + url.search
    }
    const route = req.method === 'POST' ? calls.get(req.url ?? '') : undefined
    if (!route) return app(req, res)
    const routed = Object.assign(req, { path: route.path, params: {}, query: {}, route })
    const reply = new HttpReply(context, routed, res)
    answer(context, route, reply, routed).catch((thrown: unknown) => reply.end({ type: 'failed', thrown }))
  }
}

function callsOf(routes: readonly Route[]): ReadonlyMap<string, Route> {
  return new Map(
    routes.flatMap((route) => (route.isCall && /^[a-z0-9/_]+$/.test(route.path) ? [[route.path, route]] : [])),
  )
}

/**
 * Rejects HTTP/1.1 requests without a Host header (RFC 9112 §3.2). Node's own check is disabled in http/server.ts,
 * because its error response has no body.
 */
function requireHost({ httpVersion, headers }: IncomingMessage): void {
  const isHostless = httpVersion === '1.1' && !headers.host
  if (isHostless) throw new ServiceError('invalid_request', 'The request has no Host header.')
}

function refuseTarget(res: ServerResponse): void {
  const requestId = newId('req_')
  res.setHeader('x-request-id', requestId)
  res.setHeader('request-id', requestId)
  sendError(res, new ServiceError('not_found', 'Invalid URL'), 'openai', requestId)
}

const ADVICE = {
  durable: "Send it with 'Prefer: respond-async' or an 'Idempotency-Key', or submit the call to POST /v1/jobs.",
  async: "Send it with 'Prefer: respond-async', or submit the call to POST /v1/jobs.",
}

interface Locals {
  reply: HttpReply
}

async function answer(context: IngressContext, route: Route, reply: HttpReply, req: RoutedRequest): Promise<void> {
  requireHost(req)
  const { method = '', path, params, query, headers } = req
  const { format, log } = reply
  const { requestId, facts } = log
  const key = keyOf(context, route, reply, req)
  const call: Call = {
    ...{ method, path, params, query, headers, requestId, format, key, reply, facts },
    traceparent: log.traceparent,
    jobFields: {},
    advice: ADVICE,
    uploads: new Set(),
    storage: context.storage.open(projectIdOf(key)),
    held: context.budget.open(key.id),
  }
  reply.watch(key)
  let end: (() => void) | undefined
  try {
    if (route.isCall) {
      end = await enterCall(context, key, isJobSubmission(call), (left) => setLimitHeaders(reply, format, left))
    } else setLimitHeaders(reply, format, context.limits.remaining(key))
    // The body is passed to a callback instead of being stored in a local variable. A suspended async function keeps its
    // variables in memory. The body would therefore stay in memory until the end of the call, which may take minutes.
    await readBody(context, route, call, req).then((body) => {
      if (reply.refusal) throw reply.refusal
      log.noteModel(body)
      return route.endpoint ? answerCall(context, call, route.endpoint, body) : route.handle(context, call, body)
    })
    reply.end(COMPLETED)
  } finally {
    end?.()
    log.handled()
    reply.release()
    call.held.release()
    for (const blob of call.uploads) await dropUpload(context, blob)
    call.storage[Symbol.dispose]()
  }
}

function keyOf(context: IngressContext, route: Route, { log, format }: HttpReply, req: RoutedRequest): ApiKey {
  try {
    const key = identify(context, log, format, req)
    if (route.isCall) log.handling(route.path, route.kind, req.method ?? '', req.headers)
    authorize(key, route.path, route.scope)
    return key
  } catch (error) {
    // The request log records refused calls (requests that create work), and refused requests without a valid key. Other
    // refused requests, such as reads with a valid key, are not recorded.
    if (route.isCall || log.facts.key_id === undefined) log.refused(route.path, route.kind, true)
    throw error
  }
}

function identify({ keys }: IngressContext, { facts }: CallLog, format: WireFormat, req: IncomingMessage): ApiKey {
  const key = authenticate(req, keys, format)
  facts.key_id = key.id
  facts.project_id = projectIdOf(key)
  return key
}

/**
 * Records a call of an unknown path or method in the request log, if its key is valid. GET and HEAD are not recorded, because a client may poll a
 * path that does not exist.
 */
function recordUnknown(context: IngressContext, { log, format }: HttpReply, req: RoutedRequest): void {
  requireHost(req)
  if (req.method === 'GET' || req.method === 'HEAD') return
  try {
    identify(context, log, format, req)
  } catch {
    return
  }
  log.refused(req.path)
}

/**
 * Reads the body, which may take minutes. If the key is revoked in this time, then the caller receives the error at once. If the rest of the body
 * arrives too slowly, then http/server.ts closes the connection.
 */
async function readBody(context: IngressContext, route: Route, call: Call, req: IncomingMessage): Promise<unknown> {
  if (!route.hasBody) return undefined
  const { reply } = call
  const { disconnected: left } = reply
  const refuse = () => {
    if (reply.refusal) reply.end({ type: 'failed', thrown: reply.refusal })
  }
  left.addEventListener('abort', refuse)
  try {
    if (route.readBody) return await route.readBody(context, call, req)
    const { bodyBytesMax: bytesMax, bodyStallMs: stallMs } = context.config
    const onMalformed = route.isCall ? (body: Buffer) => CallBodies.malformed(context, call, body) : undefined
    return await readJsonBody(req, { bytesMax, stallMs }, call.held, onMalformed)
  } finally {
    left.removeEventListener('abort', refuse)
  }
}

async function dropUpload(context: IngressContext, blob: string): Promise<void> {
  await context.blobs
    .delete(blob)
    .catch((error: unknown) =>
      context.log.warn({ err: error, blob }, 'blob could not be deleted; the deletion is retried later'),
    )
}

function refuseMethod(routes: readonly Route[], path: string, req: Request, res: Response): void {
  // Express answers HEAD for every GET route, so the list of allowed methods contains HEAD too.
  const allowed = routes
    .filter((route) => route.path === path)
    .flatMap(({ method }) => (method === 'GET' ? [method, 'HEAD'] : [method]))
  res.setHeader('allow', allowed.join(', '))
  throw new ServiceError('method_not_supported', `${req.method} is not supported here. Use ${allowed.join(' or ')}.`)
}

const PATH_MAX = 200
/**
 * Maximum edit distance between a path and its suggestion, in characters and as a fraction of the length. Without the
 * relative limit, `/v1/ws` would be suggested for every short path.
 */
const DISTANCE_MAX = 3
const DISTANCE_SHARE_MAX = 1 / 3

const CHAT = "Send the whole conversation to POST /v1/chat/completions, or use 'conversation' of POST /v1/responses."

const ENDPOINTS_HINT = `Available endpoints: ${KEY_ENDPOINTS.join(', ')}, and the paths below them.`

const ROOT_HINT =
  'The paths of the API begin with /v1, such as /v1/chat/completions and /v1/jobs. The page /docs and /openapi.json list all paths. The console is at /console.'

/**
 * Unsupported APIs of the OpenAI and Anthropic SDKs, by the beginning of their path, with an alternative for each. The
 * first match applies.
 */
const RELATED_APIS: readonly (readonly [RegExp, string])[] = [
  [
    /^\/v1\/complete\b/,
    'This deprecated API is not supported. Use POST /v1/messages, or POST /v1/completions for raw prompts.',
  ],
  [
    /^\/v1\/(requests?|logs?)\b/,
    'Use GET /v1/admin/requests/{id}, or GET /v1/admin/requests for a list. Every key may read the requests of its own project.',
  ],
  [/^\/v1\/v2\/rerank\b/, 'Use POST /v1/rerank.'],
  [/^\/v1\/uploads\b/, 'Uploads in parts are not supported. Send the whole file to POST /v1/files.'],
  [/^\/v1\/(assistants|threads)\b/, `The Assistants API is not supported. ${CHAT}`],
  [
    /^\/v1\/realtime\b/,
    'The Realtime API is not supported. GET /v1/ws is a WebSocket for the endpoints of this service.',
  ],
  [
    /^\/v1\/(audio\/voices|images|videos|fine_tuning|vector_stores|evals|containers|score)\b/,
    `This API is not supported. ${ENDPOINTS_HINT}`,
  ],
]

function notFoundMessage(method: string, path: string, paths: readonly string[]): string {
  if (path === '/') return `Invalid URL (${method} /). ${ROOT_HINT}`
  const shown = path.slice(0, PATH_MAX)
  const tidy = normalizedPath(shown)
  const [, kin] = RELATED_APIS.find(([known]) => known.test(tidy)) ?? []
  const meant = kin === undefined ? similarPath(shown, tidy, paths) : undefined
  return `Invalid URL (${method} ${shown}). ${kin ?? (meant ? `Did you mean ${meant}?` : ENDPOINTS_HINT)}`
}

function normalizedPath(path: string): string {
  const segments = path.split('/').filter((segment) => segment !== '' && segment !== 'v1')
  return `/v1/${segments.join('/')}`
}

function similarPath(path: string, tidy: string, paths: readonly string[]): string | undefined {
  const isKnown = paths.some((known) => isLike(known, tidy))
  if (isKnown) return tidy === path ? undefined : tidy
  const [nearest] = similarNameOf(
    tidy,
    paths.filter((known) => !/[:*]/.test(known)),
  )
  if (!nearest) return undefined
  const ownChars = nearest.name.length - '/v1/'.length
  return nearest.distance <= Math.min(DISTANCE_MAX, ownChars * DISTANCE_SHARE_MAX) ? nearest.name : undefined
}

/**
 * Whether the path of a request matches the path pattern of a route. In a pattern, `:id` stands for any one segment, and a final `/*` for one or
 * more segments.
 */
function isLike(row: string, path: string): boolean {
  const [rows, segments] = [row.split('/'), path.split('/')]
  const isRest = rows.at(-1) === '*'
  if (isRest ? segments.length < rows.length : segments.length !== rows.length) return false
  return rows.every((segment, at) => segment === '*' || segment.startsWith(':') || segment === segments[at])
}
