import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { requireRemoteUrl } from '#services/ingress/body/media.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { nativeUrlsOf } from '#shared/outbound/native-urls.ts'
import type { Caller } from './endpoint.ts'

/**
 * Headers that are forwarded to every upstream: vendor parts of the trace context (W3C Trace Context, W3C Baggage), and
 * session ids. Routers use a session id to keep a conversation on one server. `traceparent` is forwarded separately,
 * with the job.
 */
const FORWARDED = ['tracestate', 'baggage', 'x-session-id', 'x-session-affinity', 'session-id'] as const

/**
 * Maximum characters of one header; a longer value is dropped. Limited, because every attempt of the job carries the
 * headers, and no session id is this long.
 */
const HEADER_CHARS_MAX = 4_096

/**
 * Request fields that come from the call instead of its body: the alias of the model, and headers for the upstream.
 *
 * @param asked Field `model` of the body
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
 * Checks the URLs in native parts. Their hosts must be public. Images and files may be remote only if the operator
 * allows it.
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
