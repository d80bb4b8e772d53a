import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { requireRemoteUrl } from '#services/ingress/body/media.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { nativeUrlsOf } from '#shared/outbound/native-urls.ts'
import { runYielding } from '#shared/yielding.ts'
import type { Caller } from './endpoint.ts'

/**
 * Headers of callers that every upstream gets: the vendor part of the trace context (W3C Trace Context, W3C Baggage; `traceparent`
 * travels with the job), and the session of the caller, by which routers keep a conversation on one server.
 */
const FORWARDED = ['tracestate', 'baggage', 'x-session-id', 'x-session-affinity', 'session-id'] as const

/** Characters of one header. A longer one is no name of a session, and every attempt of the job carries it. */
const HEADER_CHARS_MAX = 4_096

/**
 * Fields of a request that come from the call around its body: the alias by which the caller named the model, and the headers for
 * the upstream.
 *
 * @param asked `model` of the body.
 */
export function upstreamFields(
  caller: Pick<Caller, 'key' | 'headers'>,
  model: ModelConfig,
  asked: unknown,
): Pick<GenerateRequest, 'named' | 'headers'> {
  const headers: Record<string, string> = {}
  for (const name of [...FORWARDED, ...model.forward_headers]) {
    const value = caller.headers[name]
    if (typeof value === 'string' && value !== '' && value.length <= HEADER_CHARS_MAX) headers[name] = value
  }
  if (model.project_header !== undefined) headers[model.project_header] = encodeURIComponent(projectIdOf(caller.key))
  return {
    ...(typeof asked === 'string' && asked !== model.id && { named: asked }),
    ...(Object.keys(headers).length > 0 && { headers }),
  }
}

/**
 * Checks the URLs in what an upstream gets as it came: public hosts only, and images and files only if remote ones are allowed.
 *
 * @throws ServiceError `invalid_value`, `unsupported_value`
 */
export async function requireNativeUrls(request: GenerateRequest, remoteImages: boolean): Promise<void> {
  await runYielding(checkNativeUrls(request, remoteImages))
}

function* checkNativeUrls(request: GenerateRequest, remoteImages: boolean): Generator<undefined, void> {
  for (const { url, isMedia } of yield* nativeUrlsOf(request)) {
    requireRemoteUrl(url, 'body', remoteImages || !isMedia)
    yield
  }
}
