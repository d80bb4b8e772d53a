import { openAsBlob } from 'node:fs'
import { basename } from 'node:path'
import { FormData } from 'undici'
import { z } from 'zod'
import { usageError } from '#services/cli/failure.ts'
import { type HttpClient, type HttpResponse, readApiError } from './http.ts'

export const BatchView = z.looseObject({
  id: z.string(),
  status: z.string(),
  endpoint: z.string(),
  created_at: z.number(),
  completed_at: z.number().nullish(),
  output_file_id: z.string().nullish(),
  error_file_id: z.string().nullish(),
  errors: z
    .looseObject({ data: z.array(z.looseObject({ message: z.string(), line: z.number().nullish() })) })
    .nullish(),
  request_counts: z.looseObject({ total: z.number(), completed: z.number(), failed: z.number() }),
})
export type BatchView = z.infer<typeof BatchView>

/** Client of the files and batches APIs (docs/guides/batches.md). @throws CommandError for every error response */
export class BatchesApi {
  readonly #http: HttpClient

  constructor(http: HttpClient) {
    this.#http = http
  }

  /** Streams a file of requests to the service. @returns The id of the uploaded file */
  async upload(path: string): Promise<string> {
    const blob = await openAsBlob(path).catch((error: Error) => {
      throw usageError(`${path}: ${error.message}`)
    })
    const form = new FormData()
    form.append('purpose', 'batch')
    form.append('file', blob, basename(path))
    return (await this.#http.json(z.looseObject({ id: z.string() }), '/v1/files', { method: 'POST', form })).id
  }

  async create(request: object): Promise<BatchView> {
    return await this.#http.json(BatchView, '/v1/batches', { method: 'POST', body: request })
  }

  async get(id: string): Promise<BatchView> {
    return await this.#http.json(BatchView, `/v1/batches/${encodeURIComponent(id)}`)
  }

  async content(file: string): Promise<HttpResponse> {
    return await this.#read(`/v1/files/${encodeURIComponent(file)}/content`)
  }

  async messagesResults(id: string): Promise<HttpResponse> {
    return await this.#read(`/v1/messages/batches/${encodeURIComponent(id)}/results`)
  }

  async #read(path: string): Promise<HttpResponse> {
    const response = await this.#http.send(path, { headers: { accept: '*/*' } })
    if (response.statusCode >= 300) throw await readApiError(response)
    return response
  }
}
