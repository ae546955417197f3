"""Map: which documents, queries or curves are alike?"""
