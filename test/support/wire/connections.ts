import {
  brotliCompressSync,
  constants,
  deflateRawSync,
  deflateSync,
  gzipSync,
  type ZstdOptions,
  zstdCompressSync,
} from 'node:zlib'
import type { WireCase } from './case.ts'
import {
  chunk,
  DONE,
  frame,
  HELLO,
  HELLO_BLOCK,
  JSON_TYPE,
  MESSAGE_STOP,
  messageStream,
  RESPONSE_STREAM,
  ROLE,
  SSE,
  STOP,
  STREAM,
  USAGE,
  WHOLE,
} from './frames.ts'

const HELLO_STOP = { text: 'Hello', finish: 'stop' }
const USED = { ...HELLO_STOP, usage: [9, 4] }
const LINES = [...STREAM.matchAll(/^data: (\{.*)$/gm)].map(([, json]) => `${json}\n`).join('')
const NO_CHECKSUM: ZstdOptions = { params: { [constants.ZSTD_c_checksumFlag]: 0 } }

function openai(name: string, more: Partial<WireCase>): WireCase {
  return { name, upstream: 'openai', head: SSE, expect: USED, ...more }
}

/**
 * Responses with unusual framing that must be understood: other line ends, blank lines, or a content type that does not match the body. An HTML
 * page must become a 502 error.
 */
const FRAMING: readonly WireCase[] = [
  openai('crlf_no_end', { body: STREAM.replaceAll('\n', '\r\n').trimEnd() }),
  openai('byte_order_mark', { body: `\ufeff${STREAM}` }),
  openai('blank_lines_first', { body: `\n\n${STREAM}` }),
  openai('blanks_first', { body: `  ${STREAM}` }),
  openai('no_space', { body: STREAM.replaceAll('data: ', 'data:') }),
  openai('event_names_and_ids', { body: STREAM.replaceAll('data: ', 'id: 7\nevent: message\ndata: ') }),
  openai('data_over_lines', { body: STREAM.replaceAll(',"object"', ',\ndata: "object"') }),
  openai('done_twice', { body: STREAM + DONE }),
  openai('empty_frames', { body: STREAM.replace(HELLO, `data:\n\ndata: \n\n${HELLO}data: {}\n\ndata: ""\n\n`) }),
  openai('no_content_type', { head: {}, body: STREAM }),
  openai('octet_stream', { head: { 'content-type': 'application/octet-stream' }, body: STREAM }),
  openai('odd_content_type', { head: { 'content-type': 'Text/Event-Stream;charset=UTF-8' }, body: STREAM }),
  openai('whole_blanks_first', { head: JSON_TYPE, body: `\n\n   \n${WHOLE}\n` }),
  openai('whole_as_stream', { body: WHOLE }),
  openai('whole_no_type', { head: {}, body: WHOLE }),
  openai('whole_pretty', { body: JSON.stringify(JSON.parse(WHOLE), null, 2) }),
  openai('whole_then_done', { head: JSON_TYPE, body: `${WHOLE}\n\n${DONE}` }),
  openai('json_lines', { head: { 'content-type': 'application/x-ndjson' }, body: LINES }),
  openai('json_lines_as_json', { head: JSON_TYPE, body: LINES }),
  openai('html', { head: { 'content-type': 'text/html' }, body: '<html>Welcome</html>', expect: { status: 502 } }),
  openai('html_as_stream', { body: '<html>Welcome</html>', expect: { status: 502 } }),
  openai('html_as_json', { head: JSON_TYPE, body: '<html>Welcome</html>', expect: { status: 502 } }),
  openai('text', { head: { 'content-type': 'text/plain' }, body: 'Hello', expect: { status: 502 } }),
  openai('nothing', { body: '', expect: { status: 502 } }),
  openai('nothing_no_type', { head: {}, body: '', expect: { status: 502 } }),
]

function coded(name: string, coding: string | undefined, bytes: Buffer, head = JSON_TYPE): WireCase {
  return openai(name, { head: { ...head, ...(coding !== undefined && { 'content-encoding': coding }) }, bytes })
}

const CODINGS: readonly WireCase[] = [
  coded('gzip_unnamed', undefined, gzipSync(WHOLE)),
  coded('gzip_unnamed_stream', undefined, gzipSync(STREAM), SSE),
  coded('gzip_named_otherwise', 'br', gzipSync(WHOLE)),
  coded('plain_as_gzip', 'gzip', Buffer.from(WHOLE)),
  coded('plain_as_gzip_stream', 'gzip', Buffer.from(STREAM), SSE),
  coded('plain_as_br', 'br', Buffer.from(WHOLE)),
  coded('plain_as_deflate', 'deflate', Buffer.from(STREAM), SSE),
  coded('plain_as_utf8', 'utf-8', Buffer.from(WHOLE)),
  coded('br', 'br', brotliCompressSync(WHOLE)),
  coded('br_stream', 'br', brotliCompressSync(STREAM), SSE),
  coded('deflate', 'deflate', deflateSync(WHOLE)),
  coded('deflate_raw', 'deflate', deflateRawSync(STREAM), SSE),
  coded('zstd_stream', 'zstd', zstdCompressSync(STREAM, NO_CHECKSUM), SSE),
  coded('zstd_unnamed', undefined, zstdCompressSync(WHOLE)),
  coded('gzip_without_trailer', 'gzip', gzipSync(STREAM).subarray(0, -8), SSE),
  { ...coded('gzip_cut', 'gzip', gzipSync(ROLE + HELLO), SSE), expect: { status: 502 } },
  {
    ...coded('gzip_broken', 'gzip', Buffer.concat([gzipSync(WHOLE).subarray(0, 40), Buffer.alloc(99, 7)])),
    expect: { status: 502 },
  },
  { ...coded('compress', 'compress', Buffer.of(0x1f, 0x9d, 0x90, 1, 2, 3)), expect: { status: 502 } },
]

const ENDS: readonly WireCase[] = [
  openai('reset_after_finish', { body: ROLE + HELLO + STOP, after: 'reset', expect: HELLO_STOP }),
  openai('reset_after_usage', { body: ROLE + HELLO + STOP + USAGE, after: 'reset' }),
  openai('reset_in_usage', { body: (ROLE + HELLO + STOP + USAGE).slice(0, -20), after: 'reset', expect: HELLO_STOP }),
  openai('reset_without_blank_line', { body: (ROLE + HELLO + STOP).trimEnd(), after: 'reset', expect: HELLO_STOP }),
  openai('end_in_usage', { body: (ROLE + HELLO + STOP + USAGE).slice(0, -20), expect: HELLO_STOP }),
  openai('idle_after_finish', { body: ROLE + HELLO + STOP, after: 'idle', expect: HELLO_STOP }),
  openai('idle_after_usage', { body: ROLE + HELLO + STOP + USAGE, after: 'idle' }),
  openai('idle_after_done', { body: STREAM, after: 'idle' }),
  openai('idle_gzip', {
    head: { ...SSE, 'content-encoding': 'gzip' },
    bytes: gzipSync(ROLE + HELLO + STOP + USAGE),
    after: 'idle',
  }),
  openai('whole_idle', { head: JSON_TYPE, body: WHOLE, after: 'idle' }),
  openai('whole_reset', { head: JSON_TYPE, body: WHOLE, after: 'reset' }),
  openai('whole_no_stream_reset', { head: SSE, body: WHOLE, after: 'reset' }),
  {
    name: 'anthropic_reset',
    upstream: 'anthropic',
    head: SSE,
    body: messageStream(HELLO_BLOCK),
    after: 'reset',
    expect: USED,
  },
  {
    name: 'anthropic_idle',
    upstream: 'anthropic',
    head: SSE,
    body: messageStream(HELLO_BLOCK),
    after: 'idle',
    expect: USED,
  },
  {
    name: 'anthropic_idle_after_stop',
    upstream: 'anthropic',
    head: SSE,
    body: messageStream(HELLO_BLOCK) + MESSAGE_STOP,
    after: 'idle',
    expect: USED,
  },
  { name: 'responses_reset', upstream: 'responses', head: SSE, body: RESPONSE_STREAM, after: 'reset', expect: USED },
  { name: 'responses_idle', upstream: 'responses', head: SSE, body: RESPONSE_STREAM, after: 'idle', expect: USED },
  openai('reset_before_finish', { body: ROLE + HELLO, after: 'reset', expect: { status: 502 } }),
  openai('end_before_finish', { body: ROLE + HELLO, expect: { status: 502 } }),
  openai('end_in_finish', { body: (ROLE + HELLO + STOP).slice(0, -20), expect: { status: 502 } }),
  openai('whole_cut', { head: JSON_TYPE, body: WHOLE.slice(0, -30), expect: { status: 502 } }),
  openai('whole_cut_reset', { head: JSON_TYPE, body: WHOLE.slice(0, -30), after: 'reset', expect: { status: 502 } }),
  openai('garbage_after_finish', { body: `${ROLE}${HELLO}${STOP}${USAGE}${frame('[END]')}` }),
  openai('garbage_before_finish', { body: `${ROLE}${HELLO}${frame('{oops')}`, expect: { status: 502 } }),
  openai('finish_with_text', {
    body: frame(chunk({ role: 'assistant', content: 'Hello' }, 'stop')),
    expect: HELLO_STOP,
  }),
]

/**
 * Upstream responses with unusual framing, compression or connection behaviour. Most are valid. The invalid ones
 * are similar, and must be reported as errors.
 */
export const CONNECTIONS: readonly WireCase[] = [...FRAMING, ...CODINGS, ...ENDS]
