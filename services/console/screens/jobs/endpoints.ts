import { signal } from '@preact/signals'
import { fetchJson } from '#services/console/api/client.ts'

/** The subset of `GET /openapi.json` that names the endpoints of jobs. */
interface Document {
  readonly paths: Readonly<Record<string, { readonly post?: { readonly parameters?: readonly { name: string }[] } }>>
}

/** The endpoint of batches. Batches are always jobs and do not have the header `prefer`. */
const BATCHES = '/v1/batches'

/** Endpoints whose requests can run as durable jobs; empty until loaded. */
export const jobEndpoints = signal<readonly string[]>([])

/** Loads the endpoints once per tab. @throws ApiFailure, TypeError */
export async function loadJobEndpoints(): Promise<void> {
  if (jobEndpoints.value.length === 0) jobEndpoints.value = endpointsOf(await fetchJson<Document>('/openapi.json'))
}

/** Endpoints that can run as a job: those that accept `Prefer: respond-async`. */
export function endpointsOf({ paths }: Document): readonly string[] {
  const async = Object.entries(paths).filter(([, { post }]) => post?.parameters?.some(({ name }) => name === 'prefer'))
  return [...async.map(([path]) => path), BATCHES]
}
