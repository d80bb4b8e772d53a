/*
 * Advice in 404 messages: the path that the caller probably meant, or an alternative to an API that is not supported.
 */
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'

const PATH_MAX = 200
/**
 * Maximum edit distance between a path and its suggestion, absolute and relative to the length. Without the relative
 * limit, `/v1/ws` would be suggested for every short path.
 */
const DISTANCE_MAX = 3
const DISTANCE_SHARE_MAX = 1 / 3

const CHAT = "Send the whole conversation to POST /v1/chat/completions, or use 'conversation' of POST /v1/responses."

/** Hint for a path that is similar to no endpoint. */
const ENDPOINTS_HINT = `Available endpoints: ${KEY_ENDPOINTS.join(', ')}, and the paths below them.`

/** Hint for the path `/`, which is often opened in a browser. */
const ROOT_HINT =
  'The API is below /v1: /v1/chat/completions, /v1/jobs and others, which /openapi.json describes and a browser shows at /docs. The console is at /console.'

/**
 * Unsupported APIs of the OpenAI and Anthropic SDKs, by the beginning of their path, with an alternative for each. The
 * first match applies.
 */
const RELATED_APIS: readonly (readonly [RegExp, string])[] = [
  [
    /^\/v1\/complete\b/,
    'This deprecated API is not supported. Use POST /v1/messages, or POST /v1/completions for raw prompts.',
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

/**
 * Error message for a path without an endpoint.
 *
 * @param paths Paths of all endpoints, as in the route table
 */
export function notFoundMessage(method: string, path: string, paths: readonly string[]): string {
  if (path === '/') return `Invalid URL (${method} /). ${ROOT_HINT}`
  const shown = path.slice(0, PATH_MAX)
  const tidy = normalizedPath(shown)
  const [, kin] = RELATED_APIS.find(([known]) => known.test(tidy)) ?? []
  const meant = kin === undefined ? similarPath(shown, tidy, paths) : undefined
  return `Invalid URL (${method} ${shown}). ${kin ?? (meant ? `Did you mean ${meant}?` : ENDPOINTS_HINT)}`
}

/** Normalized path: one slash between segments, none at the end, and the version exactly once. */
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

/** Whether a path matches a route. In a route, `:id` stands for any segment, and a final `/*` for any rest. */
function isLike(row: string, path: string): boolean {
  const [rows, segments] = [row.split('/'), path.split('/')]
  const isRest = rows.at(-1) === '*'
  if (isRest ? segments.length < rows.length : segments.length !== rows.length) return false
  return rows.every((segment, at) => segment === '*' || segment.startsWith(':') || segment === segments[at])
}
