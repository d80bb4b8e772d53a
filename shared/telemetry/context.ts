/*
 * Trace contexts (W3C Trace Context and W3C Baggage).
 *
 * A context is one text, so each record, row and call needs a single field. The text is the `traceparent` header. If the caller sent `tracestate` or
 * `baggage`, then both follow, separated by tabs. Example: `00-4bf9…-00f0…-01⇥vendor=1⇥tenant=a`. A valid header contains no tab, because
 * {@link incomingContext} replaces tabs by spaces. If a caller sends only `baggage`, then the first part is empty.
 *
 * Sluice adds no entries of its own to `tracestate` and `baggage`. A span replaces only the first part, so upstreams and webhooks receive the entries
 * unchanged.
 */

import type { IncomingHttpHeaders } from 'node:http'

export interface SpanContext {
  readonly traceId: string
  readonly id: string
  readonly isSampled: boolean
}

const SEPARATOR = '\t'
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:[-\t].*)?$/
const TRACEPARENT_CHARS = 55

const TRACESTATE_MEMBERS_MAX = 32
const TRACESTATE_CHARS_MAX = 512
/** If a `tracestate` header is too long, then members of more than this many characters are removed first (W3C Trace Context, 3.3.1.5). */
const TRACESTATE_MEMBER_CHARS = 128
const TRACESTATE_MEMBER =
  /^([a-z0-9][a-z0-9_*/@-]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]$/

const BAGGAGE_CHARS_MAX = 8_192
const BAGGAGE_MEMBER =
  /^[\w!#$%&'*+.^`|~-]+ *= *[!#-+\--:<-[\]-~]*(?: *; *[\w!#$%&'*+.^`|~-]+(?: *= *[!#-+\--:<-[\]-~]*)?)*$/

/** Parses the first part of a context (W3C Trace Context). Undefined if the part is missing or invalid. */
export function contextOf(context: string | null | undefined): SpanContext | undefined {
  const [, traceId, id, flags = '00'] = context ? (TRACEPARENT.exec(context) ?? []) : []
  if (traceId === undefined || id === undefined) return undefined
  return { traceId, id, isSampled: (Number.parseInt(flags, 16) & 1) === 1 }
}

/** Returns the trace id of a context. Null if the context is missing or invalid. */
export function traceIdOf(traceparent: string | null | undefined): string | null {
  return contextOf(traceparent)?.traceId ?? null
}

/** Returns the field `trace_id` for a log line. No field if the call has no trace. */
export function traceField(traceparent: string | null | undefined): { readonly trace_id?: string } {
  const trace_id = contextOf(traceparent)?.traceId
  return trace_id === undefined ? {} : { trace_id }
}

/** Returns the context in the headers of a call. Invalid or oversized headers are omitted, because a call never fails because of its trace. */
export function incomingContext(headers: IncomingHttpHeaders): string | undefined {
  if (headers.traceparent === undefined && headers.baggage === undefined) return undefined
  const asked = headers.traceparent?.toString()
  // If the header has a later version, then the trace is continued with version 00, as W3C Trace Context requires.
  const parent = contextOf(asked) && asked ? `00${asked.slice(2, TRACEPARENT_CHARS)}` : ''
  const state = parent === '' ? '' : tracestateOf(headers.tracestate)
  const baggage = baggageOf(headers.baggage)
  const more = state + baggage === '' ? '' : `${SEPARATOR}${state}${SEPARATOR}${baggage}`
  return parent + more || undefined
}

/** Returns the headers that pass a context on with a request to another server. */
export function outgoingHeaders(context: string | undefined, hasBaggage: boolean): Record<string, string> {
  const [traceparent, tracestate, baggage] = context?.split(SEPARATOR) ?? []
  return {
    ...(traceparent && { traceparent }),
    ...(tracestate && { tracestate }),
    ...(hasBaggage && baggage && { baggage }),
  }
}

/** Returns `tracestate` and `baggage` of a context, with their separators. Empty if there are none. */
export function entriesOf(context: string | null | undefined): string {
  const at = context?.indexOf(SEPARATOR) ?? -1
  return context && at >= 0 ? context.slice(at) : ''
}

/**
 * Returns the context for a request that serves several callers, such as a batch of embeddings. The baggage of one caller does not apply to the
 * others, so it is removed.
 */
export function withoutBaggage(context: string | undefined): string | undefined {
  return context?.split(SEPARATOR, 2).join(SEPARATOR)
}

function tracestateOf(header: string | readonly string[] | undefined): string {
  const text = textOf(header)
  let members = membersOf(text)
  const keys = members.map((member) => TRACESTATE_MEMBER.exec(member)?.[1])
  if (keys.includes(undefined) || new Set(keys).size < keys.length || keys.length > TRACESTATE_MEMBERS_MAX) return ''
  if (text.length <= TRACESTATE_CHARS_MAX) return text
  members = members.filter(({ length }) => length <= TRACESTATE_MEMBER_CHARS)
  while (members.join(',').length > TRACESTATE_CHARS_MAX) members.pop()
  return members.join(',')
}

function baggageOf(header: string | readonly string[] | undefined): string {
  const text = textOf(header)
  return text.length <= BAGGAGE_CHARS_MAX && membersOf(text).every((member) => BAGGAGE_MEMBER.test(member)) ? text : ''
}

function textOf(header: string | readonly string[] | undefined): string {
  return (header?.toString() ?? '').replaceAll(SEPARATOR, ' ').trim()
}

function membersOf(text: string): string[] {
  return text.split(',').flatMap((member) => member.trim() || [])
}
