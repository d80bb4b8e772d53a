import { refuse } from '#services/ingress/endpoints/decode.ts'

/** Addresses that a server would fetch or open: schemes with an authority, and `file:`. */
const ADDRESS = /^\s*(?:[a-z][a-z0-9+.-]*:\/\/|file:)/i
/** Fields whose text is read, not fetched. */
const TEXTS: ReadonlySet<string> = new Set(['text', 'thinking', 'reasoning', 'summary', 'title', 'content'])

/**
 * Refuses addresses inside a part of an unknown type, such as `video_url` (protection against SSRF). The upstream would
 * fetch them from inside the operator's network, and `REMOTE_IMAGES` covers only images. Data URLs are allowed.
 *
 * @throws ServiceError `unsupported_value`
 */
export function refuseAddresses(value: unknown, param: string): void {
  if (typeof value === 'string' && ADDRESS.test(value)) {
    const message = 'Remote URLs are not fetched from parts of this type. Send the content as a data URL.'
    refuse('unsupported_value', param, message)
  }
  if (typeof value !== 'object' || value === null) return
  for (const [name, inner] of Object.entries(value)) {
    if (typeof inner === 'string' && TEXTS.has(name)) continue
    refuseAddresses(inner, Array.isArray(value) ? `${param}[${name}]` : `${param}.${name}`)
  }
}
