/*
 * Removes secrets from an upstream's error messages before callers receive them. A message may quote the API key, or the address or internals of the
 * server.
 */
import type { UpstreamConfig } from '#schemas/models.ts'
import type { ErrorSanitizer } from './error.ts'
import { addressesOf } from './servers.ts'

const MESSAGE_CHARS_MAX = 500
const READ_CHARS_MAX = 8_000
/** Minimum length of a secret that is removed from messages. A shorter header value may be an ordinary word. */
const SECRET_CHARS_MIN = 6

const PUBLIC_HEADERS = new Set([
  'content-type',
  'accept',
  'accept-encoding',
  'user-agent',
  'anthropic-version',
  'anthropic-beta',
])

const TRACE = /Traceback \(most recent call last\)|\bFile "[^"]*", line \d/
const CREDENTIALS = /\bBearer\s+[^\s,;]{6,}|\bsk-[\w*.-]{6,}/gi
const URLS = /\b[a-z][a-z0-9+.-]*:\/\/[^\s"'<>]+/gi
const IPS = /(?:\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*\])(?::\d+)?/gi
// biome-ignore lint/suspicious/noControlCharactersInRegex: the pattern matches control characters to remove them
const BLANK = /[\s\u0000-\u001f\u007f-\u009f]+/g

/**
 * Creates the sanitiser of one upstream.
 *
 * The sanitiser removes the API key, all other secret headers of the model catalogue, and the server's address in any notation. Other URLs and IP
 * addresses may name internal servers, so they are removed too. Credentials of a known form and stack traces are also removed. The upstream's name of
 * the model is replaced with the name that callers know.
 *
 * @param headers Headers sent with every call, in lower case.
 */
export function errorSanitizerOf(
  model: string,
  config: UpstreamConfig,
  headers: Readonly<Record<string, string>>,
): ErrorSanitizer {
  const secrets = anyOf(secretsOf(config, headers), '')
  const hosts = anyOf(hostsOf(config), WORD)
  const name = anyOf(config.model === undefined ? [] : [config.model], WORD)
  return (text) => {
    const [words = ''] = text.slice(0, READ_CHARS_MAX).split(TRACE, 1)
    const clean = words
      .replace(CREDENTIALS, '[key]')
      .replace(secrets, '[hidden]')
      .replace(URLS, '[address]')
      .replace(IPS, '[address]')
      .replace(hosts, '[address]')
      .replace(name, () => model)
    return clean.replace(BLANK, ' ').trim().slice(0, MESSAGE_CHARS_MAX)
  }
}

function secretsOf(config: UpstreamConfig, headers: Readonly<Record<string, string>>): string[] {
  const users = addressesOf(config).flatMap(({ url }) => secretsIn(new URL(url)))
  const values = Object.entries(headers).flatMap(([name, value]) => (PUBLIC_HEADERS.has(name) ? [] : [value]))
  // The value may be `Bearer KEY`, so each of its words is a secret too.
  const parts = [...values, ...values.flatMap((value) => value.split(/\s+/)), ...users]
  return parts.filter((part) => part.length >= SECRET_CHARS_MIN).flatMap((part) => [part, encodeURIComponent(part)])
}

/** Returns the secrets in a URL: user, password and query values, because some servers accept a key in the query. */
function secretsIn({ username, password, searchParams }: URL): string[] {
  const values = [...searchParams].flatMap(([name, value]) => (/version$/i.test(name) ? [] : [value]))
  return [username, password, ...values]
}

function hostsOf(config: UpstreamConfig): string[] {
  return addressesOf(config).flatMap(({ url }) => namesOf(new URL(url)))
}

function namesOf({ host, hostname, port }: URL): string[] {
  // A host name without dots, such as `vllm`, may also be an ordinary word, so it is removed only together with a port.
  const isWord = !/[.:]/.test(hostname)
  return [...(port === '' && isWord ? [] : [host]), ...(isWord ? [] : [hostname])]
}

/** Characters that must not be adjacent to a match, because the match would then be part of a longer name. */
const WORD = '[\\w-]'

function anyOf(texts: readonly string[], boundary: string): RegExp {
  if (texts.length === 0) return NOTHING
  const any = texts
    .toSorted((a, b) => b.length - a.length)
    .map((text) => RegExp.escape(text))
    .join('|')
  return new RegExp(boundary === '' ? any : `(?<!${boundary})(?:${any})(?!${boundary})`, 'gi')
}

const NOTHING = /(?!)/g
