import { ListBatches, ListMessageBatches } from '#schemas/batches/body.ts'
import { ListFiles } from '#schemas/files.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

/** Files and batches (docs/batches.md). */
export const BATCHES: Operations = {
  'POST /v1/files': {
    id: 'uploadFile',
    tag: 'Batches',
    summary: 'Uploads a file, such as the requests of a batch',
    form: 'multipart/form-data',
    body: 'FileForm',
    answers: one('The file.', 'File'),
  },
  'GET /v1/files': {
    id: 'listFiles',
    tag: 'Batches',
    summary: 'Your files, newest first',
    query: ListFiles,
    answers: one('A page of files.', 'FileList'),
  },
  'GET /v1/files/:id': { id: 'getFile', tag: 'Batches', summary: 'A file', answers: one('The file.', 'File') },
  'DELETE /v1/files/:id': {
    id: 'deleteFile',
    tag: 'Batches',
    summary: 'Deletes a file',
    answers: one('It is deleted.', 'FileDeleted'),
  },
  'GET /v1/files/:id/content': {
    id: 'getFileContent',
    tag: 'Batches',
    summary: 'The bytes of a file',
    answers: { 200: { description: 'As they were uploaded or written.', media: ['application/octet-stream'] } },
  },
  'POST /v1/batches': {
    id: 'createBatch',
    tag: 'Batches',
    summary: 'Up to 50,000 requests of a file as one batch',
    headers: ['idempotency-key'],
    body: 'CreateBatchRequest',
    answers: one('The batch.', 'Batch'),
  },
  'GET /v1/batches': {
    id: 'listBatches',
    tag: 'Batches',
    summary: 'Your batches, newest first',
    query: ListBatches,
    answers: one('A page of batches.', 'BatchList'),
  },
  'GET /v1/batches/:id': { id: 'getBatch', tag: 'Batches', summary: 'A batch', answers: one('The batch.', 'Batch') },
  'POST /v1/batches/:id/cancel': {
    id: 'cancelBatch',
    tag: 'Batches',
    summary: 'Stops a batch; what has ended by then is written',
    answers: one('The batch, which may still be `cancelling`.', 'Batch'),
    failures: [409],
  },
  'POST /v1/messages/batches': {
    id: 'createMessageBatch',
    tag: 'Batches',
    summary: 'A batch of messages',
    headers: ['anthropic-version', 'idempotency-key'],
    body: 'CreateMessageBatchRequest',
    answers: one('The batch.', 'MessageBatch'),
  },
  'GET /v1/messages/batches': {
    id: 'listMessageBatches',
    tag: 'Batches',
    summary: 'Your batches of messages, newest first',
    query: ListMessageBatches,
    answers: one('A page of batches.', 'MessageBatchList'),
  },
  'GET /v1/messages/batches/:id': {
    id: 'getMessageBatch',
    tag: 'Batches',
    summary: 'A batch of messages',
    answers: one('The batch.', 'MessageBatch'),
  },
  'DELETE /v1/messages/batches/:id': {
    id: 'deleteMessageBatch',
    tag: 'Batches',
    summary: 'Forgets a batch of messages that has ended',
    answers: one('It is forgotten.', 'MessageBatchDeleted'),
    failures: [409],
  },
  'POST /v1/messages/batches/:id/cancel': {
    id: 'cancelMessageBatch',
    tag: 'Batches',
    summary: 'Stops a batch of messages',
    answers: one('The batch, which may still be `canceling`.', 'MessageBatch'),
    failures: [409],
  },
  'GET /v1/messages/batches/:id/results': {
    id: 'getMessageBatchResults',
    tag: 'Batches',
    summary: 'A line for each request of a batch, in their order',
    answers: { 200: { description: 'The results.', media: ['application/x-jsonl'] } },
    failures: [409],
  },
}
