import { hostname } from 'node:os'
import { pid } from 'node:process'
import { z } from 'zod'

const Switch = z.stringbool()
const Milliseconds = z.coerce.number().int().min(1).max(86_400_000)

/** The format of W3C Baggage without properties: `key=value`, comma-separated, with percent-encoded values. */
const Pairs = z
  .string()
  .regex(/^ *[^=, ]+ *=[^,]*(,[^=,]+=[^,]*)* *$/, 'must be a comma-separated list of key=value')
  .transform((text, context) => {
    try {
      const pairs = text.split(',').map((pair) => /^ *([^= ]+) *= *(.*?) *$/s.exec(pair) ?? [])
      return Object.fromEntries(
        pairs.map(([, key = '', value = '']) => [decodeURIComponent(key), decodeURIComponent(value)]),
      )
    } catch {
      context.addIssue({ code: 'custom', message: 'must have valid percent encoding' })
      return z.NEVER
    }
  })

/** Settings of traces. Names, formats and defaults are those of the OpenTelemetry specification, except where a description states otherwise. */
export const TRACES = {
  OTEL_EXPORTER_OTLP_ENDPOINT: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({
      description:
        'Base URL of an OTLP/HTTP collector, such as http://localhost:4318, which receives traces at /v1/traces',
      unset: 'no traces',
    }),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ description: 'Full URL for traces, instead of OTEL_EXPORTER_OTLP_ENDPOINT', unset: 'not used' }),
  OTEL_EXPORTER_OTLP_HEADERS: Pairs.optional().meta({
    description:
      'Headers for the collector, as comma-separated key=value with percent encoding. Example: authorization=Bearer%20abc',
    unset: 'none',
  }),
  OTEL_EXPORTER_OTLP_TRACES_HEADERS: Pairs.optional().meta({
    description: 'Headers for traces, instead of OTEL_EXPORTER_OTLP_HEADERS',
    unset: 'not used',
  }),
  OTEL_EXPORTER_OTLP_PROTOCOL: z
    .literal('http/protobuf', { error: 'must be http/protobuf, the only supported protocol' })
    .default('http/protobuf')
    .describe('Protocol of the collector: http/protobuf'),
  OTEL_EXPORTER_OTLP_COMPRESSION: z
    .enum(['none', 'gzip'])
    .default('none')
    .describe('Compression of requests to the collector: none or gzip'),
  OTEL_EXPORTER_OTLP_TIMEOUT: Milliseconds.default(10_000).describe(
    'Maximum time of one request to the collector, in ms',
  ),
  OTEL_SERVICE_NAME: z.string().optional().meta({
    description: 'Name of the service in traces',
    unset: 'sluice-ROLE, such as sluice-ingress; sluice for a process of all roles',
  }),
  OTEL_RESOURCE_ATTRIBUTES: Pairs.optional().meta({
    description:
      'Attributes of the process in traces, as comma-separated key=value. Example: deployment.environment.name=prod',
    unset: 'none',
  }),
  OTEL_TRACES_SAMPLER: z
    .enum([
      'always_on',
      'always_off',
      'traceidratio',
      'parentbased_always_on',
      'parentbased_always_off',
      'parentbased_traceidratio',
    ])
    .default('parentbased_always_on')
    .describe(
      'Traces to record: always_on, always_off or traceidratio; with the prefix parentbased_, the flag of a traceparent header decides first',
    ),
  OTEL_TRACES_SAMPLER_ARG: z.coerce
    .number()
    .min(0)
    .max(1)
    .default(1)
    .describe('Fraction of traces that traceidratio records, from 0 to 1'),
  OTEL_BSP_SCHEDULE_DELAY: Milliseconds.default(5_000).describe(
    'Maximum time until a span is sent to the collector, in ms',
  ),
  OTEL_BSP_MAX_QUEUE_SIZE: z.coerce
    .number()
    .int()
    .min(1)
    .max(1_000_000)
    .default(8_192)
    .describe(
      'Maximum spans that wait for the collector. Further spans are dropped. The default of OpenTelemetry is 2048',
    ),
  OTEL_BSP_MAX_EXPORT_BATCH_SIZE: z.coerce
    .number()
    .int()
    .min(1)
    .max(10_000)
    .default(512)
    .describe('Maximum spans per request to the collector'),
  OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT: Switch.default(false).describe(
    'Record prompts and answers in traces, up to 32,768 characters each',
  ),
  OTEL_SDK_DISABLED: Switch.default(false).describe('Turn traces off, even if an endpoint is set'),
}

type TracesSettings = z.infer<z.ZodObject<typeof TRACES>>

/** Settings of traces: the collector and the recorded data (docs/operate/traces.md). */
export interface TracesConfig {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly timeoutMs: number
  readonly isCompressed: boolean
  /** Attributes of the process in traces. `service.name` is missing unless a variable sets it, because its default depends on the role. */
  readonly resource: Readonly<Record<string, string | number>>
  /** Maximum spans in one request to the collector. `queueSpansMax` limits the spans that wait for a request. */
  readonly batchSpansMax: number
  readonly queueSpansMax: number
  readonly scheduleDelayMs: number
  readonly sampling: { readonly ratio: number; readonly followsParent: boolean }
  readonly hasContent: boolean
}

/** Returns the settings of traces. Undefined if no endpoint is set or traces are turned off. */
export function tracesOf(s: TracesSettings): TracesConfig | undefined {
  const base = s.OTEL_EXPORTER_OTLP_ENDPOINT
  const endpoint = s.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? (base && `${base.replace(/\/+$/, '')}/v1/traces`)
  if (endpoint === undefined || s.OTEL_SDK_DISABLED) return undefined
  const { url, authorization } = withoutLogin(endpoint)
  const headers = s.OTEL_EXPORTER_OTLP_TRACES_HEADERS ?? s.OTEL_EXPORTER_OTLP_HEADERS ?? {}
  const hasAuthorization = Object.keys(headers).some((name) => name.toLowerCase() === 'authorization')
  const [, parent, sampler] = /^(parentbased_)?(.*)$/.exec(s.OTEL_TRACES_SAMPLER) ?? []
  const ratio = { always_on: 1, always_off: 0, traceidratio: s.OTEL_TRACES_SAMPLER_ARG }[sampler ?? ''] ?? 1
  const process = { 'host.name': hostname(), 'process.pid': pid, 'service.instance.id': `${hostname()}:${pid}` }
  const service: Record<string, string> =
    s.OTEL_SERVICE_NAME === undefined ? {} : { 'service.name': s.OTEL_SERVICE_NAME }
  return {
    url,
    headers: authorization === undefined || hasAuthorization ? headers : { ...headers, authorization },
    timeoutMs: s.OTEL_EXPORTER_OTLP_TIMEOUT,
    isCompressed: s.OTEL_EXPORTER_OTLP_COMPRESSION === 'gzip',
    resource: { ...process, ...s.OTEL_RESOURCE_ATTRIBUTES, ...service },
    batchSpansMax: Math.min(s.OTEL_BSP_MAX_EXPORT_BATCH_SIZE, s.OTEL_BSP_MAX_QUEUE_SIZE),
    queueSpansMax: s.OTEL_BSP_MAX_QUEUE_SIZE,
    scheduleDelayMs: s.OTEL_BSP_SCHEDULE_DELAY,
    sampling: { ratio, followsParent: parent !== undefined },
    hasContent: s.OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT,
  }
}

/** Moves user and password of a URL into a header, because `fetch` rejects URLs that contain them. */
function withoutLogin(endpoint: string): { readonly url: string; readonly authorization: string | undefined } {
  const url = new URL(endpoint)
  const { username, password } = url
  if (username === '' && password === '') return { url: endpoint, authorization: undefined }
  url.username = ''
  url.password = ''
  const login = Buffer.from(`${percentDecoded(username)}:${percentDecoded(password)}`).toString('base64')
  return { url: url.href, authorization: `Basic ${login}` }
}

function percentDecoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    // The text has a percent sign that begins no valid escape, so it is returned unchanged.
    return text
  }
}
