import type { IncomingMessage, ServerResponse } from 'node:http'
import express, { type NextFunction, type Request, type Response } from 'express'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import { formatOfRequest, sendError, statusOf } from './answer/errors-http.ts'
import { notFoundMessage } from './answer/not-found.ts'
import { jsonReader, type ReadJson } from './body/body.ts'
import type { Call, CallFacts, IngressContext, WireFormat } from './call.ts'
import { authenticate } from './callers/auth.ts'
import { Revocation } from './callers/revocation.ts'
import { ROUTES, type Route } from './routes.ts'

/**
 * The HTTP application: the one handler behind every row of the endpoint table.
 *
 * In this order: request id, route (404, 405), key (401, 403), limits (429), body (400, 408, 413, 415), the row's own work.
 */
export function openApp(context: IngressContext): (req: IncomingMessage, res: ServerResponse) => void {
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  // Paths are compared as they were sent: no second spelling of an endpoint.
  app.enable('case sensitive routing')
  app.enable('strict routing')
  const readJson = jsonReader({ bytesMax: context.config.bodyBytesMax, stallMs: context.config.bodyStallMs })
  app.use((req, res, next) => identify(context, req, res, next))
  for (const route of ROUTES) {
    const path = route.path.replace('/*', '/*rest')
    const method = route.method.toLowerCase() as 'get' | 'post' | 'delete'
    app[method](path, (req, res) => answer(context, route, readJson, req, res))
  }
  for (const route of ROUTES) {
    app.all(route.path.replace('/*', '/*rest'), (req, res) => refuseMethod(route.path, req, res))
  }
  app.use((req: Request, res: Response) => refuseRoute(req, res))
  app.use((error: unknown, req: Request, res: Response, _next: NextFunction) => onError(context, error, req, res))
  return (req, res) => {
    const target = originForm(req.url ?? '')
    if (target === undefined) return refuseTarget(res)
    req.url = target
    app(req, res)
  }
}

/** A proxy may send the whole URL (RFC 9112 §3.2.2); undefined when it is none. Express would throw or answer on its own. */
function originForm(target: string): string | undefined {
  if (target.startsWith('/') || target === '*') return target
  const url = URL.parse(target)
  return url ? url.pathname + url.search : undefined
}

function refuseTarget(res: ServerResponse): void {
  const requestId = newId('req_')
  res.setHeader('x-request-id', requestId)
  res.setHeader('request-id', requestId)
  sendError(res, new ServiceError('not_found', 'Invalid URL'), 'openai', requestId)
}

/** What this file keeps on a response between its steps. */
interface Locals {
  requestId: string
  facts: CallFacts
}

function identify(context: IngressContext, req: Request, res: Response, next: NextFunction): void {
  const startedAt = performance.now()
  const locals: Locals = { requestId: newId('req_'), facts: {} }
  Object.assign(res.locals, locals)
  res.setHeader('x-request-id', locals.requestId)
  res.setHeader('request-id', locals.requestId)
  if (context.jobs.isDraining) res.setHeader('connection', 'close')
  res.once('close', () => logAccess(context, req, res, startedAt))
  // RFC 9112 §3.2; left to us by server.ts so that the refusal has a body.
  if (req.httpVersion === '1.1' && !req.headers.host) {
    throw new ServiceError('invalid_request', 'The request has no Host header.')
  }
  next()
}

async function answer(
  context: IngressContext,
  route: Route,
  readJson: ReadJson,
  req: Request,
  res: Response,
): Promise<void> {
  const { requestId, facts } = res.locals as Locals
  const startedAt = performance.now()
  const format = formatOfRequest(req)
  const key = authenticate(req, context.keys, format, route.path)
  facts.key_id = key.id
  const uploads = new Set<string>()
  const revocation = new Revocation(context.keys, key, res)
  const revoked = revocation.signal
  const noteFailure = (error: ServiceError) => noteFailed(context, res, error, format)
  const held = context.budget.open(key.id)
  const call: Call = {
    req,
    res,
    requestId,
    format,
    key,
    revoked,
    startedAt,
    facts,
    noteFailure,
    jobFields: {},
    uploads,
    held,
  }
  let end: (() => void) | undefined
  try {
    end = route.isCall ? context.limits.begin(key.id) : undefined
    if (route.isCall) await context.limits.count(key.id, format, res)
    else await context.limits.show(key.id, format, res)
    // In no variable of ours: what is suspended keeps all of its variables alive, and a call may take minutes.
    await readBody(context, route, readJson, call).then((body) => {
      revoked.throwIfAborted()
      return route.handle(context, call, body)
    })
  } finally {
    end?.()
    revocation.end()
    held.release()
    for (const blob of uploads) await dropUpload(context, blob)
  }
}

/** A body may arrive for minutes: who loses the key meanwhile is answered at once, and server.ts ends the rest of the body. */
async function readBody(context: IngressContext, route: Route, readJson: ReadJson, call: Call): Promise<unknown> {
  if (!route.hasBody) return undefined
  const { req, res, format, requestId, revoked } = call
  const refuse = () => {
    call.noteFailure(revoked.reason)
    sendError(res, revoked.reason, format, requestId)
  }
  revoked.addEventListener('abort', refuse)
  try {
    return route.readBody ? await route.readBody(context, call) : await readJson(req, call.held)
  } finally {
    revoked.removeEventListener('abort', refuse)
  }
}

async function dropUpload(context: IngressContext, blob: string): Promise<void> {
  await context.blobs.delete(blob).catch((error: unknown) => context.log.warn({ err: error, blob }, 'blob not deleted'))
}

function refuseMethod(path: string, req: Request, res: Response): void {
  // Express answers HEAD wherever it answers GET.
  const allowed = ROUTES.filter((route) => route.path === path).flatMap(({ method }) =>
    method === 'GET' ? [method, 'HEAD'] : [method],
  )
  res.setHeader('allow', allowed.join(', '))
  throw new ServiceError('method_not_supported', `${req.method} is not supported here. Use ${allowed.join(' or ')}.`)
}

function refuseRoute(req: Request, _res: Response): void {
  const paths = ROUTES.map(({ path }) => path)
  throw new ServiceError('not_found', notFoundMessage(req.method, req.path, paths))
}

/** One of the two places that classify failures: whatever a handler threw becomes the caller's answer. */
function onError(context: IngressContext, thrown: unknown, req: Request, res: Response): void {
  const error = isMalformedUrl(thrown) ? new ServiceError('not_found', 'Invalid URL') : ServiceError.from(thrown)
  const format = formatOfRequest(req)
  noteFailed(context, res, error, format)
  if (res.headersSent) res.destroy()
  else sendError(res, error, format, (res.locals as Locals).requestId)
}

/**
 * What the access log and the metrics tell of a failure. After the head, which said 200, it counts as the status it would
 * have had. A caller who left first did not see it.
 */
function noteFailed(context: IngressContext, res: Response, error: ServiceError, format: WireFormat): void {
  const { requestId, facts } = res.locals as Locals
  if (error.code === 'internal_error') context.log.error({ err: error, request_id: requestId }, 'internal error')
  if (res.destroyed) return
  facts.error_code ??= error.code
  const status = statusOf(error, format)
  if (!res.headersSent || facts.status !== undefined || status === res.statusCode) return
  facts.status = status
  facts.sent_status = res.statusCode
}

/** Express decodes path parameters and throws what decodeURIComponent throws. */
function isMalformedUrl(thrown: unknown): boolean {
  return thrown instanceof URIError
}

/** One line a request: what, how it ended, how long. Never bodies, prompts or keys. */
function logAccess(context: IngressContext, req: Request, res: Response, startedAt: number): void {
  const { requestId, facts } = res.locals as Locals
  const durationMs = performance.now() - startedAt
  const route = req.route?.path ?? 'none'
  const status = facts.status ?? (res.writableFinished ? res.statusCode : 'aborted')
  context.metrics.requests.inc({ route, status: String(status), model: facts.model ?? '' })
  context.metrics.requestSeconds.observe({ route, model: facts.model ?? '' }, durationMs / 1_000)
  const retries = req.get('x-stainless-retry-count')
  context.log.info(
    {
      request_id: requestId,
      method: req.method,
      path: req.path.slice(0, 200),
      status,
      duration_ms: Math.round(durationMs * 10) / 10,
      ...(retries !== undefined && retries !== '0' && { client_retry: retries.slice(0, 10) }),
      ...facts,
    },
    'request',
  )
}
